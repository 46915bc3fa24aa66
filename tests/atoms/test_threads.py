"""The catalogue in a program whose threads ask for it first at one time."""

from __future__ import annotations

import sys
import threading

from tilemma.atoms import Catalogue


def test_threads_make_the_records_of_a_family_once() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        catalogue, failures, start = Catalogue(), list[BaseException](), threading.Barrier(4)

        def work() -> None:
            start.wait()
            try:
                assert [a for module in catalogue._modules for a in catalogue._of(module)]
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
    finally:
        sys.setswitchinterval(before)
