"""Our side: the trainer of this package, as `openmanus-rl train` puts it together, without its journal and checkpoints.

python -m benchmarks.peers.ours WORK rollout|step [KEY=VALUE ...]
"""

import sys
import time

import torch

from benchmarks.peers.sides import Numbers, given_work, serve
from benchmarks.peers.work import Work, held_out_success, tasks_of
from openmanus_rl.config.schema import Config
from openmanus_rl.data.trajectory import Trajectory
from openmanus_rl.rewards import RewardComposer
from openmanus_rl.trainer.local_group import LocalWorkerGroup
from openmanus_rl.trainer.ray_trainer import RayPPOTrainer


def make_trainer(config: Config, group: LocalWorkerGroup, seen: list[Trajectory]) -> RayPPOTrainer:
    """The training loop; `seen` holds the episodes of the last round."""
    composer = RewardComposer.from_specs([part.model_dump() for part in config.reward.components])
    tasks = tasks_of(config)

    def keep(_: str, __: int, trajectories: object) -> tuple[Trajectory, ...]:
        seen[:] = list(trajectories)  # type: ignore[call-overload]
        return ()

    return RayPPOTrainer(
        config, group, group.make_agent(), composer, lambda _: tasks, lambda *_: None, lambda *_: None, keep
    )


def counts(seen: list[Trajectory]) -> Numbers:
    """What was done in the episodes of a round."""
    turns = [turn for trajectory in seen for turn in trajectory.turns]
    return {
        "steps": len(turns),
        "generated": sum(len(turn.response_ids) for turn in turns),
        "episodes": len(seen),
        "won": sum(trajectory.won for trajectory in seen),
    }


def main() -> None:
    work, what = given_work(), sys.argv[2]
    torch.set_num_threads(work.threads)
    run(work, what, work.config(*sys.argv[3:]))


def run(work: Work, what: str, config: Config) -> None:
    """Do rounds of what is asked for."""
    group = LocalWorkerGroup(config)
    seen: list[Trajectory] = []
    trainer = make_trainer(config, group, seen)

    def collect(number: int) -> Numbers:
        trainer.step = number
        start = time.perf_counter()
        trainer.collect({})
        return {"seconds": time.perf_counter() - start, **counts(seen)}

    def step(number: int) -> Numbers:
        trainer.step = number
        start = time.perf_counter()
        metrics = trainer.train_step()
        seconds = time.perf_counter() - start
        stages = {name.removeprefix("time/"): value for name, value in metrics.items() if name.startswith("time/")}
        return {"seconds": seconds, **counts(seen), "trained": metrics["tokens"], "stages": stages}

    def evaluate(_: int) -> Numbers:
        return {"success": held_out_success(group.actor.plain_model(), group.tokenizer, work, config)}

    serve({"round": collect if what == "rollout" else step, "evaluate": evaluate})
    trainer.agent.close()
    group.close()


if __name__ == "__main__":
    main()
