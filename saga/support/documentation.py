"""Links to pages of the documentation, for findings, errors and the monitor's page. Pure functions.

The package does not contain the documentation. A team that publishes the pages gives their address in the setting
`SAGA_DOCS`. Without this setting, a page is named by its file in the source of saga.
"""

from typing import Final

WHERE_TO_FIND: Final = (
    "files below docs/ are in the source of saga; with SAGA_DOCS=https://HOST/{page}.html their addresses are shown"
)
"""Hint for a person who is shown the name of a file below `docs/`, but has installed only the package."""


def link_page(page: str, anchor: str = "", template: str = "") -> str:
    """Return the address of a page, or the name of its file.

    Args:
        page: Path of the page below `docs/`, without its ending.
        anchor: Heading on the page.
        template: The setting `SAGA_DOCS`: an address with `{page}`.

    >>> link_page("guides/check", "no-start", "https://docs.example/{page}.html"), link_page("guides/check", "no-start")
    ('https://docs.example/guides/check.html#no-start', 'docs/guides/check.md#no-start')
    """
    place = template.replace("{page}", page) if template else f"docs/{page}.md"
    return f"{place}#{anchor}" if anchor else place
