"""Text that others wrote, made safe to print: no escape sequence of theirs reaches the terminal."""

import unicodedata


def one_line(text: str) -> str:
    """The text on one line; what would move the cursor or change colours is shown instead of obeyed."""
    return "".join(_visible(character) for character in " ⏎ ".join(text.splitlines()))


def _visible(character: str) -> str:
    if character == "\t":
        return " "
    if unicodedata.category(character) in {"Cc", "Cf", "Cs", "Co"}:
        return f"\\x{ord(character):02x}"
    return character
