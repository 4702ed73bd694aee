"""Draws the pictures of this folder, which share one style: python docs/explanation/pictures.py

Each picture has its own background, so that it is readable on a page of either colour scheme.
"""

from pathlib import Path

FOLDER = Path(__file__).parent
STYLE = """
.page{fill:#fff;stroke:#d5dbe2}.box,.grid{fill:#eef3fb;stroke:#44618f}.grid{stroke-width:.7}
.hot{fill:#fbe6cf;stroke:#a0622d}.sum{fill:#dff0e2;stroke:#3c7a4b}.off{fill:#f3f4f6;stroke:#c3cad2}
.line{stroke:#66727f;fill:none;marker-end:url(#a)}.tip{fill:#66727f}
text{fill:#1d2733;text-anchor:middle;dominant-baseline:central}.left{text-anchor:start}.small{font-size:12px}
@media(prefers-color-scheme:dark){.page{fill:#16191d;stroke:#3a424c}.box,.grid{fill:#1f2c40;stroke:#86a5d8}
.hot{fill:#4a3118;stroke:#d99a5f}.sum{fill:#1d3a25;stroke:#79bd8a}.off{fill:#22262b;stroke:#444c55}
.line{stroke:#9aa7b5}.tip{fill:#9aa7b5}text{fill:#e6ebf1}}
"""


class Picture:
    """Elements of one SVG file; x, y, w and h are pixels."""

    def __init__(self, name, title, w, h):
        self.path = FOLDER / f"{name}.svg"
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}" '
            f'font-family="system-ui, sans-serif" font-size="14" role="img" aria-label="{title}">',
            f"<style>{STYLE}</style>",
            '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path class="tip" d="M0 0 8 4 0 8z"/></marker></defs>',
            f'<rect class="page" x=".5" y=".5" width="{w - 1}" height="{h - 1}" rx="8"/>',
        ]

    def text(self, x, y, *lines, kind=""):
        for number, line in enumerate(lines):
            self.parts.append(f'<text class="{kind}" x="{x}" y="{y + 17 * number}">{line}</text>')

    def box(self, x, y, w, h, *lines, kind="box", text=""):
        self.parts.append(f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="{4 if lines else 0}"/>')
        self.text(x + w / 2, y + h / 2 - 8.5 * (len(lines) - 1), *lines, kind=text)

    def grid(self, x, y, w, h, columns, rows):
        for column in range(columns):
            for row in range(rows):
                self.box(x + column * w / columns, y + row * h / rows, w / columns, h / rows, kind="grid")

    def arrow(self, *paths):
        self.parts += [f'<path class="line" d="{path}"/>' for path in paths]

    def write(self):
        self.path.write_text("\n".join([*self.parts, "</svg>"]) + "\n", encoding="utf-8")


def data_flow():
    p = Picture("data-flow", "Data flow of quasi-attention", 760, 300)
    for y, name in ((20, "Q"), (64, "K"), (192, "Qc"), (236, "Kc")):
        p.box(20, y, 60, 32, name)
        p.arrow(f"M80 {y + 16}H104V152H126")
    p.box(128, 128, 112, 48, "λ: gate of Q, Qc", "and of K, Kc", kind="hot", text="small")
    p.box(128, 40, 112, 36, "T = s Q Kᵀ", kind="hot")
    p.box(128, 212, 112, 36, "Tc = s Qc Kcᵀ", kind="hot")
    p.arrow("M80 36H116V52H126", "M80 80H116V66H126", "M80 208H116V224H126", "M80 252H116V238H126")
    p.box(286, 40, 124, 36, "P = softmax(T)", kind="hot")
    p.box(286, 212, 124, 36, "G = α sigmoid(Tc)", kind="hot", text="small")
    p.box(458, 128, 124, 48, "A = P + λ G", "dropout", kind="hot")
    p.box(630, 134, 104, 36, "O = A V", kind="sum")
    p.box(652, 40, 60, 32, "V")
    p.text(262, 108, "masks", kind="small")
    p.text(262, 194, "masks", kind="small")
    p.arrow("M240 58H284", "M240 230H284", "M410 58H520V126", "M410 230H520V178")
    p.arrow("M240 152H456", "M582 152H628", "M682 72V132", "M262 100V62", "M262 202V226")
    p.text(380, 280, "orange: tiles in registers or cache, never an L x S matrix in memory", kind="small")
    p.write()


def attention_grid(p, x, y, w, h, columns, rows, across="keys (S)", down="queries (L)"):
    """Draws the L x S plane of scores, divided into tiles."""
    p.grid(x, y, w, h, columns, rows)
    p.text(x + w / 2, y - 14, across, kind="small")
    p.parts.append(
        f'<text class="small" transform="translate({x - 14} {y + h / 2}) rotate(-90)">{down}</text>',
    )


def cpu_forward():
    p = Picture("cpu-forward", "Tiling of the forward on the CPU", 760, 290)
    attention_grid(p, 40, 40, 320, 200, 2, 5)
    p.box(40, 80, 320, 40, kind="hot")
    for column in range(4):
        p.box(200 + 40 * column, 80, 40, 40, kind="hot")
    p.text(120, 100, "span 1", kind="small")
    p.text(220, 100, "128", kind="small")
    p.text(260, 100, "128", kind="small")
    p.text(300, 100, "128", kind="small")
    p.text(340, 100, "128", kind="small")
    p.text(280, 140, "span 2, in chunks of keys", kind="small")
    p.text(200, 262, "a row block: 64 queries, 128 with AMX", kind="small")
    p.box(400, 30, 330, 34, "T = s Q Kᵀ of the whole span", kind="hot")
    p.box(400, 80, 330, 34, "maximum, exponential and sum of each row", kind="hot")
    p.box(400, 130, 330, 34, "Tc and its sigmoid, chunk by chunk", kind="hot")
    p.box(400, 180, 158, 52, "one span:", "O = (P + λ G) V", kind="sum")
    p.box(572, 180, 158, 52, "several: O1 rescaled,", "O2 = G V added", kind="sum", text="small")
    p.arrow("M565 64V78", "M565 114V128", "M479 164V178", "M651 164V178")
    p.text(565, 262, "a span: all keys up to 2,048, else 512 keys", kind="small")
    p.write()


def triton_forward():
    p = Picture("triton-forward", "Tiling of the Triton forward", 760, 300)
    p.text(180, 24, "single-tile rows")
    attention_grid(p, 50, 70, 120, 160, 1, 4)
    p.box(50, 110, 120, 40, "T, Tc, A", kind="hot")
    p.box(230, 110, 90, 40, "O", kind="sum")
    p.arrow("M170 130H228")
    p.text(199, 116, "· V", kind="small")
    p.text(185, 252, "a program holds all keys: exact softmax,", "three products", kind="small")
    p.parts.append('<path class="line" style="marker-end:none" d="M380 20V280"/>')
    p.text(570, 24, "tiled rows")
    attention_grid(p, 430, 70, 160, 160, 4, 4)
    p.box(430, 110, 160, 40, kind="off")
    p.box(510, 110, 40, 40, kind="hot")
    p.arrow("M436 130H506")
    p.box(640, 88, 90, 36, "O1 = P V", kind="sum", text="small")
    p.box(640, 136, 90, 36, "O2 = G V", kind="sum", text="small")
    p.arrow("M550 124L638 108", "M550 136L638 152")
    p.text(570, 252, "a program visits block_n keys at a time: online softmax,", kind="small")
    p.text(570, 269, "four products, of which only O1 is rescaled", kind="small")
    p.write()


def backward():
    p = Picture("backward", "Tiling of the backward", 760, 310)
    for x, title in ((130, "over keys"), (380, "over queries"), (630, "single-tile rows")):
        p.text(x, 24, title)
    attention_grid(p, 50, 70, 160, 128, 4, 4)
    p.box(90, 70, 40, 128, kind="hot")
    p.arrow("M110 78V190")
    p.box(90, 218, 40, 22, kind="sum")
    p.arrow("M110 198V216")
    p.text(130, 262, "a program owns block_n keys:", "dK, dKc, dV; six products", kind="small")
    attention_grid(p, 290, 70, 140, 128, 4, 4)
    p.box(290, 102, 140, 32, kind="hot")
    p.arrow("M298 118H422")
    p.box(446, 102, 36, 32, kind="sum")
    p.arrow("M430 118H444")
    p.text(380, 262, "a program owns block_m queries:", "dQ, dQc; five products", kind="small")
    attention_grid(p, 560, 70, 120, 128, 1, 4)
    p.box(560, 70, 120, 128, kind="hot")
    p.arrow("M620 78V190")
    p.box(560, 218, 120, 22, kind="sum")
    p.box(700, 70, 36, 128, kind="sum")
    p.arrow("M620 198V216", "M680 134H698")
    p.text(630, 262, "a program owns the sequence:", "all five gradients; eight products", kind="small")
    p.write()


if __name__ == "__main__":
    for draw in (data_flow, cpu_forward, triton_forward, backward):
        draw()
