"""Check of the fakes for resources: none too many, and none too few, for a resource without a fake would be the real
thing."""

from collections.abc import Iterator, Sequence

from saga.declarations.values import Declared
from saga.errors import DeclarationError


def check_fakes(services: Sequence[Declared], use: Sequence[object], real: Sequence[type]) -> None:
    """Check the fakes. Raises `DeclarationError` with all that is wrong: a fake that nothing uses; a resource that has
    no fake and that nobody has asked for as it is, by the type it gives in `real`; a type in `real` that no resource
    gives, or that has a fake."""
    if problems := list(_problems(services, use, real)):
        raise DeclarationError("; ".join(dict.fromkeys(problems)))


def _problems(services: Sequence[Declared], use: Sequence[object], real: Sequence[type]) -> Iterator[str]:
    resources = [(declared, resource) for declared in services for resource in declared.resources]
    names = ", ".join(repr(declared.name) for declared in services)
    for fake in use:
        if not any(isinstance(fake, resource.gives) for _, resource in resources):
            yield (
                f"no resource of {names} is what the fake {type(fake).__name__} stands for: a fake is an instance of a "
                "subclass of what the resource gives"
            )
    for declared, resource in resources:
        gives, faked = resource.gives.__name__, any(isinstance(fake, resource.gives) for fake in use)
        if not faked and resource.gives not in real:
            yield (
                f"{declared.name}.{resource.name} gives a {gives}, and nothing in use=[...] stands for it: give a "
                f"fake, an instance of a subclass of {gives}; or real=[{gives}], to have {resource.name} opened as it "
                "is"
            )
        if faked and resource.gives in real:
            yield f"{gives} is in real=[...], and use=[...] has a fake for it: keep one of the two"
    for kind in real:
        if not any(kind is resource.gives for _, resource in resources):
            yield f"no resource of {names} gives a {kind.__name__}, which is in real=[...]: leave it out"
