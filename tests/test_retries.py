from recap.retries import Retries


def test_what_waits_is_tried_more_and_more_rarely(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("recap.retries.time.monotonic", lambda: now)
    retries, waits = Retries(60), []
    assert retries.is_due("a")
    for _ in range(9):
        retries.postpone("a")
        before = now
        while not retries.is_due("a"):
            now += 60
        waits.append((now - before) / 60)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    retries.postpone("a")
    retries.forget("a")
    assert retries.is_due("a")


def test_each_waits_for_a_time_of_its_own(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("recap.retries.time.monotonic", lambda: now)
    retries = Retries(10)
    for key in ("a", "b", "b"):
        retries.postpone(key)
    assert retries.waiting() == ["a", "b"]
    now += 10
    assert retries.waiting() == ["b"]
    retries.forget("b")
    assert retries.waiting() == []
