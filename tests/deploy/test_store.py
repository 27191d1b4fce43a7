"""States that outlive processes: whole or absent, and one process at a time."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from federation import Federation
from fedhsa.deploy import Store
from fedhsa.deploy.store import BusyError, set_aside


def saved_round(store):
    packet = store.load()
    return None if packet is None else packet.header["round"]


@pytest.mark.parametrize("sync", [False, True])
def test_a_state_comes_back_in_another_process(sync, tmp_path):
    store = Store(tmp_path / "deep" / "a.state", sync)
    assert store.load() is None
    store.save({"round": 1}, {"x": np.arange(3.0)})
    store.save({"round": 2}, {"x": np.arange(4.0)})
    packet = Store(tmp_path / "deep" / "a.state", not sync).load()
    assert packet is not None
    assert packet.header == {"round": 2}
    assert packet.arrays["x"].tolist() == [0, 1, 2, 3]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.state"]


@pytest.mark.parametrize("sync", [False, True])
def test_a_state_is_the_old_or_the_new_one_wherever_a_write_ends(sync, tmp_path, monkeypatch):
    """Every call that a write makes to the system fails in turn, as if the process had ended there."""

    class End(BaseException):
        pass

    for place in range(20):
        store = Store(tmp_path / str(place) / "a.state", sync)
        store.save({"round": 1}, {})
        left = [place]

        def ending(function, left=left):
            def call(*arguments, **options):
                left[0] -= 1
                if left[0] < 0:
                    raise End
                return function(*arguments, **options)

            return call

        with monkeypatch.context() as patch:
            for name in ("open", "replace", "unlink", "fsync", "chmod"):
                patch.setattr(os, name, ending(getattr(os, name)))
            try:
                store.save({"round": 2}, {})
                ended = False
            except End:
                ended = True
        assert saved_round(Store(store.path, sync)) in ((1, 2) if ended else (2,))
        Store(store.path, sync).save({"round": 3}, {})  # and the next process is not in its way
        assert saved_round(Store(store.path, sync)) == 3
        if not ended:
            assert place > 2
            return
    pytest.fail("more calls than were tried")


def test_a_file_that_is_no_state_is_rejected_with_its_name(tmp_path):
    path = tmp_path / "a.state"
    Store(path, sync=False).save({"round": 1}, {"x": np.zeros(100)})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"a.state' is not a saved state \(the checksum is wrong.*delete it"):
        Store(path).load()


def test_a_change_by_another_process_is_seen_also_within_the_same_moment(tmp_path):
    mine, other = (Store(tmp_path / "a.state", sync=False) for _ in range(2))
    assert not mine.changed
    for number in range(50):
        other.save({"round": number}, {})
        assert mine.changed
        assert saved_round(mine) == number
        assert not mine.changed
    mine.save({"round": 99}, {})
    assert not mine.changed
    assert other.changed


def test_two_at_once_wait_for_each_other_or_are_rejected(tmp_path):
    one, two = Store(tmp_path / "a.state"), Store(tmp_path / "a.state")
    order = []
    with one.alone():
        assert two.busy
        with (
            pytest.raises(BusyError, match=r"Another process is working in .* Wait for it, or stop it"),
            two.alone(False),
        ):
            pass
        waiting = threading.Thread(target=lambda: [two.alone().__enter__(), order.append("two")])
        waiting.start()
        waiting.join(0.2)
        order.append("one")
    waiting.join(10)
    assert order == ["one", "two"]
    assert not Store(tmp_path / "nowhere" / "a.state").busy
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.slow
def test_another_process_is_kept_out_and_let_in_when_it_ends(tmp_path):
    code = (
        "import sys, fedhsa.deploy as d\nwith d.Store(sys.argv[1]).alone(): print('in', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.state")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        assert Store(tmp_path / "a.state").busy
        process.kill()
        process.wait()
        assert not Store(tmp_path / "a.state").busy


@pytest.mark.parametrize("same_object", [False, True])
def test_a_message_that_two_processes_answer_at_once_moves_the_chain_once(same_object, tmp_path):
    federation = Federation(tmp_path)
    server = federation.server(folder=None)
    heard = []
    exchange = server.transport.exchange

    def at_once(messages, seconds):
        for site, message in messages.items():
            first = federation.site(site, "test")
            sites = [first if same_object else federation.site(site, "test") for _ in range(4)]
            replies = [b""] * 4

            def answer(i, sites=sites, replies=replies, message=message):
                replies[i] = sites[i].answer(message)

            threads = [threading.Thread(target=answer, args=(i,)) for i in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(set(replies)) == 1
            heard.append(replies[0])
            yield replies[0]

    server.transport.exchange = at_once
    progress = server.run(2)
    server.transport.exchange = exchange
    whole = Federation(tmp_path / "whole")
    expected = whole.server().run(2)
    assert np.asarray(progress.server.theta).tobytes() == np.asarray(expected.server.theta).tobytes()
    assert federation.saved() == whole.saved()


def test_setting_aside_loses_nothing(tmp_path):
    path = tmp_path / "a.state"
    set_aside(path)  # nothing there, nothing done
    for number in range(3):
        path.write_text(str(number))
        set_aside(path)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {f"a-{n + 1}.state": str(n) for n in range(3)}


def test_other_users_can_neither_hold_the_lock_nor_look_into_the_folder(tmp_path):
    store = Store(tmp_path / "sites" / "run" / "0.state")
    with store.alone():
        store.save({}, {})
    for folder in ("sites", "sites/run"):
        assert (tmp_path / folder).stat().st_mode & 0o777 == 0o700
    lock = tmp_path / "sites" / "run" / "0.lock"
    assert lock.stat().st_mode & 0o777 == 0o600
    lock.chmod(0o644)  # as earlier versions left it
    with Store(store.path).alone():
        assert lock.stat().st_mode & 0o777 == 0o600
