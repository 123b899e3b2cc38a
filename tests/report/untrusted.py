"""Text as an untrusted file can hold it, and Markdown as a reader sees it."""

import html
import re

from markdown_it import MarkdownIt

HOSTILE = (
    "$5_to_$10 | <img src=x> ![a](http://b) *c* _d_ `e` ~~f~~ &lt; # g\\ \\input{h} "
    "x^{\\input{i}} x^{\\input j} y^{a}b_c_d^e & 50 % ~ \x1b[2J\n\ud800 é 犬 ^^M \u202e [k] <script> =1+1"
)
PRINTABLE = "".join("�" if letter in "\x1b\n\ud800\u202e" else letter for letter in HOSTILE)


def render(markdown):
    """The names of the HTML tags, and the text of each line without them."""
    page = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(markdown)
    lines = [html.unescape(re.sub("<[^>]*>", "", line)) for line in page.splitlines()]
    return set(re.findall(r"</?(\w+)", page)), lines
