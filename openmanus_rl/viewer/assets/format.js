// Numbers as people read them.

const MINUS = "\u2212";

export function signed(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = number(Math.abs(value), digits);
  return value > 0 ? `+${size}` : value < 0 ? `${MINUS}${size}` : size;
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(1).replace("e+", "e").replaceAll("-", MINUS);
  if (size >= 1000) return Math.round(value).toLocaleString("en-US").replace("-", MINUS);
  return String(Number(value.toPrecision(digits))).replace("-", MINUS);
}

export function percent(value, digits = 0) {
  return value === null || value === undefined ? "–" : `${(100 * value).toFixed(digits)} %`;
}

// By the name that the server gives to a form.
export function form(name) {
  if (name === "percent") return (value) => percent(value, Math.abs(value) < 0.1 && value !== 0 ? 1 : 0);
  return (value) => number(value, name === "small" ? 2 : 3);
}

// A rate as the server sends it: [share, low, high, won, of].
export function rate(values) {
  if (!values) return "–";
  return `${percent(values[0], 1)} (${Math.round(100 * values[1])} to ${Math.round(100 * values[2])} %)`;
}

export function won(values) {
  return values ? `${values[3]} of ${values[4]} won` : "";
}

export function clock(seconds) {
  const whole = Math.round(seconds);
  if (whole < 100) return `${whole} s`;
  if (whole < 6000) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

export function words(name) {
  return String(name).replaceAll("_", " ");
}

export const OUTCOMES = {
  won: ["won", "✓"],
  lost: ["lost", "✕"],
  step_limit: ["out of steps", "◷"],
  context_limit: ["out of context", "◷"],
  env_error: ["environment failed", "!"],
  engine_error: ["engine failed", "!"],
  reward_error: ["reward failed", "!"],
};

export function outcome(name) {
  return OUTCOMES[name] ?? [words(name), "?"];
}

// Runs of the same name are told apart by their directories, and those of the same by their numbers.
export function runNames(runs) {
  const several = (key, run) => runs.filter((other) => other[key] === run[key]).length > 1;
  return runs.map((run, k) => {
    if (!several("name", run)) return run.name;
    return `${run.name} (${several("directory", run) ? k + 1 : run.directory})`;
  });
}
