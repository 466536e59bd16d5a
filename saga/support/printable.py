"""Escape text from outside, such as ids, keys, reasons and file names, before it is shown. All code uses these
functions."""


def printable(text: str) -> str:
    r"""Return a string in which each invisible character is replaced by its escape sequence.

    So no text can move the cursor, colour or clear a terminal, reverse the reading order, hide a part, or begin a new
    line that looks like output of the toolkit.

    The escaped characters are those that `repr` escapes: control and format characters, line and paragraph separators,
    halves of surrogate pairs, and spaces other than the usual one. Quotes and backslashes stay as they are.

    >>> print(printable("order-1\x1b[2J\nall is well"))
    order-1\x1b[2J\nall is well
    >>> print(printable("Grüße, 東京"))
    Grüße, 東京
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def printable_lines(text: str) -> list[str]:
    """Return the lines of a string that may have several lines, such as an error.

    All lines but the first are indented, so that none of them looks like a separate line of output.

    >>> printable_lines("nothing was started:\\n  - SAGA_HTTP is taken\\nall is well")
    ['nothing was started:', '  - SAGA_HTTP is taken', '  all is well']
    """
    first, *others = text.split("\n")
    return [printable(first), *(printable(line if line.startswith(" ") else f"  {line}") for line in others)]


def count_noun(count: int, what: str) -> str:
    """Return a count with its noun, as readable text.

    >>> count_noun(0, "error"), count_noun(1, "error"), count_noun(1200, "error")
    ('no errors', '1 error', '1,200 errors')
    """
    return f"{f'{count:,}' if count else 'no'} {what}{'' if count == 1 else 's'}"


def shorten(text: str, bytes_max: int) -> str:
    """Return a string cut to at most this many bytes of UTF-8, between two characters, with `...` at the end if it was
    cut.

    >>> shorten("Grüße", 100)
    'Grüße'
    >>> shorten("ü" * 50, 24)
    'üüüüüüüüüü ...'
    """
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    return f"{encoded[: bytes_max - 4].decode('utf-8', 'ignore')} ..."


def quote_text(text: str, bytes_max: int = 80) -> str:
    r"""Quote a string from outside for use in a sentence, escaped and shortened.

    >>> print(quote_text("order-1\n"), quote_text("x" * 200, 12))
    'order-1\n' 'xxxxxxxx ...'
    """
    return f"'{shorten(printable(text[:bytes_max]) + text[bytes_max:][:1], bytes_max)}'"
