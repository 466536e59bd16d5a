"""Publishing what is no event. Rejected by: mypy, basedpyright."""

from saga import Client


async def place(client: Client) -> None:
    await client.publish({"order_id": "order-17"})  # bad
