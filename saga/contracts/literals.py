"""Python source of texts, in the form the formatter would give them: literals, and docstrings of anybody's words."""

import re
import textwrap

LINE_LENGTH = 120
INDENT = "    "


def quoted(value: str | bytes) -> str:
    """Write a literal in the formatter's quotes: double ones, unless single ones need fewer escapes."""
    quote = "'" if _count(value, '"') > _count(value, "'") else '"'
    if isinstance(value, bytes):
        body = "".join(_escaped(chr(byte), quote) if byte < 0x80 else f"\\x{byte:02x}" for byte in value)
        return f"b{quote}{body}{quote}"
    return f"{quote}{''.join(_escaped(character, quote) for character in value)}{quote}"


def number(value: float) -> str:
    """Write a number as an expression of the same value and type."""
    return repr(value).replace("e+", "e")


def docstring(doc: str) -> list[str]:
    """Write the lines of a docstring in a class. What is no printable character is written as its escape."""
    said = [line.split() for line in doc.strip().splitlines()]
    first, last = (0, 0), (len(said) - 1, len(said[-1]) - 1)
    safe = [
        " ".join(_safe(word, (row, at) == first, (row, at) == last) for at, word in enumerate(words))
        for row, words in enumerate(said)
    ]
    width = LINE_LENGTH - len(INDENT) - 3
    lines = _wrapped(safe, width)
    if len(lines) == 1:
        lines = _wrapped(safe, width - 3)  # the quotes at its end are in the same line
    made = [f'{INDENT}"""{lines[0]}', *((INDENT + line).rstrip() for line in lines[1:])]
    if len(lines) == 1:
        made[0] += '"""'
    else:
        made.append(f'{INDENT}"""')
    return made


def _wrapped(text: list[str], width: int) -> list[str]:
    return [
        line
        for words in text
        for line in textwrap.wrap(words, width, break_long_words=False, break_on_hyphens=False) or [""]
    ]


def _safe(word: str, first: bool, last: bool) -> str:
    """Escape a word of a docstring, so that no quote ends the docstring, or is taken for its beginning."""
    quotes = "|".join(['"{3,}', *(['^"'] if first else []), *(['"$'] if last else [])])
    made, end = "", 0
    for run in re.finditer(quotes, word):
        made += _plain(word[end : run.start()]) + '\\"' * len(run[0])
        end = run.end()
    return made + _plain(word[end:])


def _plain(text: str) -> str:
    """Escape what is no printable character, and backslashes."""
    return "".join(_escaped(character, "\\") for character in text)


def _escaped(character: str, quote: str) -> str:
    if character in (quote, "\\"):
        return f"\\{character}"
    return character if character.isprintable() else repr(character)[1:-1]


def _count(value: str | bytes, quote: str) -> int:
    return value.count(quote.encode()) if isinstance(value, bytes) else value.count(quote)
