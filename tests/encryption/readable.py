"""Search for a text in bytes, also where they hold it as base64."""

from base64 import b64encode


def can_be_read(text: bytes, *contents: bytes) -> bool:
    """True if one of the contents holds the text, as it is or within something in base64.

    >>> can_be_read(b"SECRET", b64encode(b"a SECRET."), b""), can_be_read(b"SECRET", b64encode(b"an other"))
    (True, False)
    """
    # At each of the three places at which it can begin; what its neighbours change at both ends is cut off.
    parts = (b64encode(b"-" * at + text)[(at * 8 + 5) // 6 : (at + len(text)) * 8 // 6] for at in range(3))
    sought = (text, *parts)
    return any(part in content for content in contents for part in sought)
