"""Rooms that are closed for a while, as an external system that is down: each call fails, and is made again."""

from collections.abc import Callable

from tests.mutants.fake_rooms import Rooms


class ClosedRooms(Rooms):
    """Nothing is to be had until it opens. Of a guest who is not wanted nothing is ever taken."""

    def __init__(self, now_s: Callable[[], float], opens_s: float, takes_back_s: float) -> None:
        super().__init__()
        self.now_s, self.opens_s, self.takes_back_s = now_s, opens_s, takes_back_s
        self.turned_away: dict[str, list[float]] = {}
        """Times at which a call failed, by key."""

    async def rent(self, key: str, what: str, price: int, remark: str) -> str:
        self._check_open(key, self.opens_s if what != "haunted" else float("inf"))
        return await super().rent(key, what, price, remark)

    async def give_back(self, key: str, charge: str) -> None:
        self._check_open(key, self.takes_back_s)
        await super().give_back(key, charge)

    def _check_open(self, key: str, opens_s: float) -> None:
        if self.now_s() < opens_s:
            self.turned_away.setdefault(key, []).append(self.now_s())
            raise ConnectionError("closed")
