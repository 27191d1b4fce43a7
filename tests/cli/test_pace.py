"""Long work that nobody watches on a terminal: what it says, and what it keeps on the way."""

from fedhsa.cli import pace


class Clock:
    """Seconds that pass when told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_work_of_nine_minutes_is_estimated_once_and_then_told_of_every_tenth(capsys):
    clock = Clock()
    lines = pace.Lines(clock)
    for second in range(541):
        clock.now = 100.0 + second
        lines("fedHSA: step 0.1", second / 540)
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "This takes about 9 minutes. FedHSA: step 0.1: 1 % done, about 9 minutes left."
    assert said[1] == "FedHSA: step 0.1: 11 % done, about 8 minutes left."
    assert len(said) == 10


def test_short_work_is_silent_and_very_long_work_speaks_every_ten_minutes(capsys):
    for total, expected in ((20, 0), (86_400, 24)):
        clock = Clock()
        lines = pace.Lines(clock)
        for second in range(min(total, 14_400)):
            clock.now = 100.0 + second
            lines("", second / total)
        assert len(capsys.readouterr().err.splitlines()) == expected


def test_what_is_done_is_kept_when_half_a_minute_has_passed_since_the_last_time():
    clock, kept = Clock(), []
    keep = pace.Kept(kept.append, clock)
    for clock.now in (110.0, 129.0, 131.0, 150.0, 162.0):
        keep(clock.now)
    assert kept == [131.0, 162.0]
