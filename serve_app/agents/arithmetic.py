"""Arithmetic in text: equations are found, and each is worked out exactly, as a fraction.

Nothing is executed: an expression is parsed and its tree walked, where only numbers, `+ - * / **`, signs and
parentheses have a meaning. Laws. Every other tree is refused (`NotArithmetic`); so are texts, nesting and powers beyond
the bounds below, before they are worked out; no value has more than MAX_BITS bits, so no expression takes longer than
milliseconds.

A side that is a lone decimal counts as rounded to the places it shows: 2 / 3 = 0.67 holds, 2 / 3 = 0.66 does not.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

MAX_CHARS = 200
MAX_DEPTH = 32
MAX_EXPONENT = 64
MAX_BITS = 4096
SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-", "^": "**", "$": None, "€": None, "£": None})

_SIDE = r"[-+*/×·÷−–^().,\d\sx$€£]{0,200}"
_EQUATION = re.compile(rf"[-+−(]{{0,9}}[$€£]?\.?\d{_SIDE}(?:\s*={{1,2}}{_SIDE}[\d)]){{1,9}}")
_WORKED_OUT = re.compile(r"\d[\s).$€£]*(?:[-+*/×·÷−–^]|x\s*\d)")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_TIMES = re.compile(r"(?<=[\d)])\s*x\s*(?=[\d(.])")
_DECIMAL = re.compile(r"\s*-?\d*\.(\d+)\s*")
_OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


class NotArithmetic(ValueError):
    """An expression that is not worked out, with the reason."""


def equations(text: str, most: int) -> list[str]:
    """The first `most` equations between numbers in `text` in which something is worked out, as they stand there."""
    found = (" ".join(match[0].split()) for line in text.splitlines() for match in _EQUATION.finditer(line))
    return [equation for equation in found if len(equation) <= MAX_CHARS and _WORKED_OUT.search(equation)][:most]


def holds(equation: str) -> bool:
    """Are all sides of `equation` (`a = b = …`) of the same value? Raises NotArithmetic."""
    sides = _plain(equation).replace("==", "=").split("=")
    if len(sides) < 2:
        raise NotArithmetic("no equals sign")
    values = [(evaluate(side), _tolerance(side)) for side in sides]
    return all(abs(one - other) <= max(rough, rougher) for (one, rough), (other, rougher) in pairwise(values))


def left_value(equation: str) -> Fraction:
    """What the first side of `equation` comes to. Raises NotArithmetic."""
    return evaluate(_plain(equation).split("=")[0])


def evaluate(expression: str) -> Fraction:
    """The exact value of an arithmetic expression. Raises NotArithmetic for anything else."""
    plain = _plain(expression).strip()
    if not plain or len(plain) > MAX_CHARS:
        raise NotArithmetic(f"an expression has 1 to {MAX_CHARS} characters")
    try:
        tree = ast.parse(plain, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise NotArithmetic("not an expression") from None
    return _value(tree.body, MAX_DEPTH)


def _plain(text: str) -> str:
    return _TIMES.sub("*", _THOUSANDS.sub("", text.translate(SIGNS)))


def _tolerance(side: str) -> Fraction:
    """Half a unit of the last place that a lone decimal shows; 0 for everything else."""
    decimal = _DECIMAL.fullmatch(side)
    return Fraction(1, 2 * 10 ** len(decimal[1])) if decimal else Fraction(0)


def _value(node: ast.expr, depth: int) -> Fraction:
    if depth == 0:
        raise NotArithmetic(f"nested deeper than {MAX_DEPTH}")
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(_exact(number))
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            value = _value(operand, depth - 1)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left, depth - 1), _value(right, depth - 1))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _combined(op, _value(left, depth - 1), _value(right, depth - 1))
    raise NotArithmetic(f"{type(node).__name__} is not arithmetic")


def _exact(number: int | float) -> Fraction:
    """A decimal as it is written, not as a binary float holds it."""
    try:
        return Fraction(repr(number))
    except ValueError:
        raise NotArithmetic("too large") from None


def _combined(op: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    try:
        return _bounded(_OPERATORS[type(op)](left, right))
    except ZeroDivisionError:
        raise NotArithmetic("division by zero") from None


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > MAX_EXPONENT:
        raise NotArithmetic(f"an exponent is a whole number of at most {MAX_EXPONENT}")
    if base == 0 and exponent < 0:
        raise NotArithmetic("division by zero")
    if _bits(base) * abs(exponent) > MAX_BITS:
        raise NotArithmetic("too large")
    return Fraction(base ** int(exponent))


def _bounded(value: Fraction) -> Fraction:
    if _bits(value) > MAX_BITS:
        raise NotArithmetic("too large")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())
