"""Pages of the documentation, as findings, errors and the monitor's page refer to them. Pure.

The package does not contain the documentation, so a team names the address under which it publishes the pages, in the
setting `SAGA_DOCS`. Without it a page is named by its file in the source of saga.
"""

from typing import Final

WHERE_TO_FIND: Final = (
    "files below docs/ are in the source of saga; with SAGA_DOCS=https://HOST/{page}.html their addresses are shown"
)
"""What a person needs who has installed the package only, and is shown the name of a file."""


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
