"""Allowed lengths of a model's vectors."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class VectorSizes:
    """Lengths of a model's vectors: `whole` numbers without a request for fewer.

    With `may_shorten` the first numbers of a vector are a valid vector, too (Matryoshka): one of the lengths
    `allowed`, or any if that is empty.
    """

    whole: int
    may_shorten: bool = False
    allowed: tuple[int, ...] = ()

    def why_not(self, dimensions: int) -> str | None:
        """Return why vectors of this length are impossible, with the possible ones; None if they are
        possible.
        """
        if dimensions == self.whole:
            return None
        if not self.may_shorten:
            return f"this model's vectors have {self.whole} numbers and cannot be shortened; leave it out"
        if self.allowed and dimensions not in self.allowed:
            return f"give one of {', '.join(map(str, self.allowed))}"
        return None if 1 <= dimensions <= self.whole else f"give 1 to {self.whole}"
