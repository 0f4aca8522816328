"""An environment of your own: a class with `reset` and `step`. Its name is `own_environment:GuessNumber`.

cd examples && openmanus-rl env check own_environment:GuessNumber
"""


class GuessNumber:
    def reset(self, seed=0):
        self.number = seed % 10
        return "Guess my number, 0 to 9.", {}

    def step(self, action):
        won = action.strip() == str(self.number)
        return ("Right!" if won else "No."), float(won), won, False, {}
