"""Printing of text from outside, escaped: ids, keys, reasons, names of files. The one place that says how."""


def printable(text: str) -> str:
    r"""Text with everything that is no visible character written as its code.

    So no text can move the cursor, colour or clear a terminal, turn the order of what is read, hide a part, or begin a
    line of its own that looks like one of ours. These are control and format characters, line and paragraph
    separators, halves of surrogate pairs, and spaces other than the usual one: those that `repr` would write so.
    Quotes and backslashes stay as they are.

    >>> print(printable("order-1\x1b[2J\nall is well"))
    order-1\x1b[2J\nall is well
    >>> print(printable("Grüße, 東京"))
    Grüße, 東京
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def printable_lines(text: str) -> list[str]:
    """Return the lines of a text that may have several, such as an error.

    All but the first are indented, so that none can pass for a line of its own.

    >>> printable_lines("nothing was started:\\n  - SAGA_HTTP is taken\\nall is well")
    ['nothing was started:', '  - SAGA_HTTP is taken', '  all is well']
    """
    first, *others = text.split("\n")
    return [printable(first), *(printable(line if line.startswith(" ") else f"  {line}") for line in others)]


def count_noun(count: int, what: str) -> str:
    """Return a count with its noun, for people.

    >>> count_noun(0, "error"), count_noun(1, "error"), count_noun(1200, "error")
    ('no errors', '1 error', '1,200 errors')
    """
    return f"{f'{count:,}' if count else 'no'} {what}{'' if count == 1 else 's'}"


def shorten(text: str, bytes_max: int) -> str:
    """Return a text cut to at most this many bytes of UTF-8, between two characters, with `...` at the end if it was
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
    r"""Quote a text from outside for a sentence: printable and bounded.

    >>> print(quote_text("order-1\n"), quote_text("x" * 200, 12))
    'order-1\n' 'xxxxxxxx ...'
    """
    return f"'{shorten(printable(text[:bytes_max]) + text[bytes_max:][:1], bytes_max)}'"
