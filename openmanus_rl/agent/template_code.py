"""The Python that Jinja makes of a chat template, with a question to the environment wherever work is done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jinja2.ext
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

from openmanus_rl.agent.template_allowance import MAX_BITS

if TYPE_CHECKING:
    from collections.abc import Callable

    from jinja2.runtime import Macro


class Generation(jinja2.ext.Extension):
    """`{% generation %}` marks what the model wrote; for a text it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("written"), [], [], body).set_lineno(line)

    def written(self, caller: Macro) -> str:
        """The block as it is."""
        return caller()


class CountingCode(CodeGenerator):
    """Python code in which loops, joined and cut texts, and new lists ask the environment first."""

    def visit_For(self, node: nodes.For, frame: Frame) -> None:  # noqa: N802 - Jinja's names
        # Besides itself, a round costs the plain text in it, which is written without asking.
        cost = 1 + sum(len(data.data) for data in _inside(node.body, nodes.TemplateData))
        node.body.insert(0, nodes.ExprStmt(nodes.Const(cost)).set_lineno(node.lineno))
        if node.test is not None:  # asked of every item, also of those that get no round
            asked = nodes.Call(nodes.EnvironmentAttribute("asked"), [], [], None, None)
            node.test = nodes.And(asked, node.test).set_lineno(node.lineno)
        super().visit_For(node, frame)

    def visit_ExprStmt(self, node: nodes.ExprStmt, frame: Frame) -> None:  # noqa: N802
        """Only `visit_For` makes these: templates have no `{% do %}`."""
        del frame
        assert isinstance(node.node, nodes.Const)
        self.newline(node)
        self.write(f"environment.spend({node.node.value})")

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.value, int) and node.value.bit_length() > MAX_BITS:
            self.fail("a number is too large", node.lineno)
        super().visit_Const(node, frame)

    def visit_Compare(self, node: nodes.Compare, frame: Frame) -> None:  # noqa: N802
        """`a < b < c` becomes `compared(a, ("lt", lambda: b), ("lt", lambda: c))`: c only if it matters."""
        self.write("environment.compared(")
        self.visit(node.expr, frame)
        for operand in node.ops:
            self.write(f", ({operand.op!r}, lambda: ")
            self.visit(operand.expr, frame)
            self.write(")")
        self.write(")")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self._asking("joined", nodes.List(node.nodes), frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:  # noqa: N802
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.cut(")
        super().visit_Getitem(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._made(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._made(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._made(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _made(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
        self.write("environment.made(")
        visit(node, frame)
        self.write(")")

    def _asking(self, name: str, argument: nodes.Expr, frame: Frame) -> None:
        self.write(f"environment.{name}(")
        self.visit(argument, frame)
        self.write(")")


def _inside(body: list[nodes.Node], kind: type[nodes.TemplateData]) -> list[nodes.TemplateData]:
    return [found for node in body for found in ([node] if isinstance(node, kind) else node.find_all(kind))]
