"""Jobs that wait, and whose turn it is: keys take turns, the addresses of a key among themselves.

In: jobs. Out: the next one. Within a client the oldest is next; a client that comes anew is behind
all who wait. It knows neither bounds nor threads.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator

from coordgen_rs.server.job import Job


class Rota:
    """The jobs of all clients, none at first."""

    def __init__(self) -> None:
        self._keys = OrderedDict[str, OrderedDict[str, deque[Job]]]()  # next one first

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Job]:
        for networks in self._keys.values():
            for jobs in networks.values():
                yield from jobs

    def add(self, job: Job) -> None:
        """Put a job behind those of its client."""
        networks = self._keys.setdefault(job.client.key, OrderedDict())
        networks.setdefault(job.client.network, deque()).append(job)

    def take(self) -> Job:
        """The job whose turn it is; its client is behind all others then."""
        key, networks = self._keys.popitem(last=False)
        network, jobs = networks.popitem(last=False)
        job = jobs.popleft()
        if jobs:
            networks[network] = jobs
        if networks:
            self._keys[key] = networks
        return job

    def remove(self, job: Job) -> bool:
        """Take a job out; False if it does not wait."""
        networks = self._keys.get(job.client.key, OrderedDict[str, deque[Job]]())
        jobs = networks.get(job.client.network, deque[Job]())
        if job not in jobs:
            return False
        jobs.remove(job)
        if not jobs:
            del networks[job.client.network]
        if not networks:
            del self._keys[job.client.key]
        return True

    def clear(self) -> list[Job]:
        """All jobs; none waits any more."""
        jobs = [*self]
        self._keys.clear()
        return jobs
