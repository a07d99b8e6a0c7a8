# What the generated stub lacks: that arrays speak the buffer protocol (which CPython's types say since 3.12).
kerf._kerf.Array.__dlpack__:
    \from typing import Any
    def __dlpack__(self, **kwargs: Any) -> Any:
        \doc

    def __buffer__(self, flags: int, /) -> memoryview: ...
