"""Bounds on the length of a model's vectors."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VectorSizes:
    """A model's vectors have `whole` numbers.

    With `may_shorten` the first numbers of a vector are a vector, too (Matryoshka): as many as `allowed`
    says, any number if it is empty.
    """

    whole: int
    may_shorten: bool = False
    allowed: tuple[int, ...] = ()

    def why_not(self, dimensions: int) -> str | None:
        """Return why no vector of this length is made, and which are; None if one is."""
        if dimensions == self.whole:
            return None
        if not self.may_shorten:
            return f"this model's vectors have {self.whole} numbers and cannot be shortened; leave it out"
        if self.allowed and dimensions not in self.allowed:
            return f"give one of {', '.join(map(str, self.allowed))}"
        return None if 1 <= dimensions <= self.whole else f"give 1 to {self.whole}"
