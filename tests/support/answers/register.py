"""Where the answers are collected, by exercise and name: RIGHT holds programs, WRONG (program, words to show)."""

RIGHT, WRONG = {}, {}


def right(program):
    """Register `exercise__manner` under its exercise."""
    exercise, manner = program.__name__.split("__")
    RIGHT.setdefault(exercise, {})[manner] = program
    return program


def wrong(words, name=""):
    """Register `exercise__bug` with words that the check must show ("some … others"); a lambda needs the name."""

    def register(program):
        exercise, bug = (name or program.__name__).split("__")
        WRONG.setdefault(exercise, {})[bug] = (program, words)
        return program

    return register


def right_answer_to(exercise):
    """One right program for an exercise: the first one."""
    return next(iter(RIGHT[exercise].values()))
