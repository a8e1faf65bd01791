"""Right answers, and wrong ones that look right: (reference, right texts, wrong texts) by task."""

from __future__ import annotations

from typing import Any

Pairs = list[tuple[Any, list[str], list[str]]]

GSM8K: Pairs = [
    ("16 - 3 - 4 = <<16-3-4=9>>9\n#### 18", [
        "#### 18", "####18", "9 * 2 = 18\n#### 18\n", "#### $18", r"#### \$18", "#### 18 dollars", "#### 18.",
        "#### 18.00", "#### **18**", "#### 18%", "#### 36/2", "#### 1.8e1", "#### +18", "#### 3\nNo, again.\n#### 18",
        "#### Step 1\n9 * 2\n#### 18", "The answer is 18", "So she makes $18 every day.", "= **18**", "x=18",
        "#### 18\nThat is for 2 eggs.", "#### eighteen, that is 18", "Half of 36 is 18.0", "9*2=18",
    ], [
        "", "####", "#### eighteen", "#### 17", "#### 180", "#### 1.8", "#### -18", "#### 18.5", "#### 18,000",
        "#### 18,19", "#### 18 - 2 = 16", "#### 18:30", "#### 18-20", "#### 18 * 2 = 36", "#### 18 1/2",
        "#### 18\n#### 19", "18\n#### 20", "18 eggs for 2 dollars", "#### 1 8", "#### 36/3", "#### 1.8e2",
        "The answer is 18 or 19", "#### 18/0", "v18.2", "#### 118", "#### 18e999999999",
    ]),
    ("So 1,800 in all.\n#### 1,800", [
        "#### 1800", "#### 1,800", "#### $1,800.00", "It is 1,800.",
    ], [
        "#### 1", "#### 1,80", "#### 800", "#### 1,800,000", "#### 1.800",
    ]),
    ("#### -3", [
        "#### -3", "#### −3", "#### -$3", "down by -3",
    ], [
        "#### 3", "5-3", "#### - 3",
    ]),
]  # fmt: skip

MATH: Pairs = [
    (r"\frac{3}{4}", [
        r"\boxed{\frac{3}{4}}", r"\boxed{\dfrac34}", r"\boxed{\tfrac{3}{4}}", r"\boxed{\frac 34}", r"\boxed{3/4}",
        r"\boxed{0.75}", r"\boxed{.75}", r"\boxed{ \frac{3} {4} }", r"$\boxed{\frac{3}{4}}$.",
        r"\boxed{$\frac{3}{4}$}", r"\boxed{x = \frac{3}{4}}", r"\boxed{1} no, \boxed{\frac{3}{4}}",
        r"\boxed{\frac{6}{8}}", r"\boxed{\frac34.}", r"\fbox{3/4}", r"\boxed{3/4} done",
        r"\boxed{3/4} and \boxed{unfinished",
    ], [
        r"\frac{3}{4}", "3/4", r"\boxed{}", r"\boxed{\frac{4}{3}}", r"\boxed{34}", r"\boxed{0.7}", r"\boxed{75}",
        r"\boxed{75\%}", r"\boxed{3/4} \boxed{1}", r"\boxed{-\frac{3}{4}}", r"\boxed{3/4", r"\boxed{\frac{3}{4}x}",
        r"\boxed{3,4}", r"\boxed{(3/4, 1)}", r"\boxed{3\frac{}{4}}", r"\boxed{\frac{3}{0}}",
        r"\boxed{4 - \frac{3}{4}}", r"\boxed{\frac{3}{4}, \frac{1}{4}}",
    ]),
    (r"1\frac{4}{5}", [
        r"\boxed{9/5}", r"\boxed{1.8}", r"\boxed{1\frac45}",
    ], [
        r"\boxed{14/5}", r"\boxed{\frac{4}{5}}",
    ]),
    (r"90^\circ", [
        r"\boxed{90}", r"\boxed{90^{\circ}}", r"\boxed{90°}", r"\boxed{90 \text{ degrees}}", r"\boxed{90\degree}",
    ], [
        r"\boxed{\frac{\pi}{2}}", r"\boxed{9}", r"\boxed{90^2}", r"\boxed{0}",
    ]),
    (r"50\%", [
        r"\boxed{50}", r"\boxed{50\%}", r"\boxed{50 percent}",
    ], [
        r"\boxed{0.5}", r"\boxed{5\%}",
    ]),
    (r"10,\!080", [
        r"\boxed{10080}", r"\boxed{10,080}", r"\boxed{10{,}080}", r"\boxed{10,\! 080}",
    ], [
        r"\boxed{10, 80}", r"\boxed{10}", r"\boxed{10, 080}", r"\boxed{1,0080}",
    ]),
    (r"5.4 \text{ cents}", [
        r"\boxed{5.4}", r"\boxed{5.40 cents}", r"\boxed{5.4\mbox{ cents}}",
    ], [
        r"\boxed{54}", r"\boxed{cents}",
    ]),
    (r"15\mbox{ cm}^2", [
        r"\boxed{15}", r"\boxed{15 \text{ cm}^2}", r"\boxed{15 square inches}",
    ], [
        r"\boxed{15^2}", r"\boxed{225}",
    ]),
    (r"\$18.90", [
        r"\boxed{18.90}", r"\boxed{\$18.9}", r"\boxed{18.90 \text{ dollars}}",
    ], [
        r"\boxed{1890}", r"\boxed{18}",
    ]),
    (r"\text{(C)}", [
        r"\boxed{C}", r"\boxed{(C)}", r"\boxed{\textbf{(C)}}",
    ], [
        r"\boxed{D}", r"\boxed{c}", r"\boxed{(C, D)}",
    ]),
    (r"\text{Evelyn}", [
        r"\boxed{Evelyn}", r"\boxed{\text{ Evelyn }}",
    ], [
        r"\boxed{Eve}", r"\boxed{\text{not Evelyn}}",
    ]),
    (r"\left( 3, \frac{\pi}{2} \right)", [
        r"\boxed{(3, \frac{\pi}{2})}", r"\boxed{(3,\pi/2)}", r"\boxed{(3.0, \frac12\pi)}",
    ], [
        r"\boxed{(\frac{\pi}{2}, 3)}", r"\boxed{3, \frac{\pi}{2}}", r"\boxed{(3, \frac{2}{\pi})}",
        r"\boxed{(3, 1.57)}",
    ]),
    ("(3,4]", [
        r"\boxed{\left(3, 4\right]}",
    ], [
        r"\boxed{(3,4)}", r"\boxed{[3,4]}", r"\boxed{34}",
    ]),
    (r"(-\infty, 2) \cup (3, \infty)", [
        r"\boxed{\left(-\infty,2\right)\cup\left(3,+\infty\right)}", r"\boxed{(-∞,2) \cup (3,∞)}",
    ], [
        r"\boxed{(-\infty, 2] \cup [3, \infty)}", r"\boxed{(-\infty, 2)}", r"\boxed{(-\infty, 2) \cap (3, \infty)}",
    ]),
    (r"x \in [-2,7]", [
        r"\boxed{[-2,7]}", r"\boxed{x\in[-2, 7]}",
    ], [
        r"\boxed{(-2,7)}", r"\boxed{[2,7]}",
    ]),
    (r"\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix}", [
        r"\boxed{\begin{pmatrix} -\frac{1}{3} \\ \frac{2}{3} \end{pmatrix}}",
        r"\boxed{\begin{bmatrix}-1/3\\2/3\end{bmatrix}}",
    ], [
        r"\boxed{\begin{pmatrix} 2/3 \\ -1/3 \end{pmatrix}}", r"\boxed{(-1/3, 2/3)}",
        r"\boxed{\begin{pmatrix} -1/3 & 2/3 \end{pmatrix}}",
    ]),
    (r"3\sqrt{13}", [
        r"\boxed{3 \sqrt{13}}", r"\boxed{3\cdot\sqrt{13}}", r"\boxed{3√13}",
    ], [
        r"\boxed{3\sqrt{3}}", r"\boxed{\sqrt{13}}", r"\boxed{3\sqrt 13}", r"\boxed{\sqrt[3]{13}}", r"\boxed{10.8}",
    ]),
    (r"11\sqrt2", [
        r"\boxed{11\sqrt{2}}", r"\boxed{11 \sqrt 2}",
    ], [
        r"\boxed{11\sqrt{22}}", r"\boxed{112}",
    ]),
    (r"\frac{3\sqrt{3}}{4}", [
        r"\boxed{\frac{3}{4}\sqrt{3}}", r"\boxed{3\sqrt{3}/4}",
    ], [
        r"\boxed{\frac{3\sqrt{3}}{2}}",
    ]),
    (r"-\frac{\pi}{6}", [
        r"\boxed{\frac{-\pi}{6}}", r"\boxed{-\pi/6}", r"\boxed{-\frac{1}{6}\pi}", r"\boxed{-\frac{π}{6}}",
    ], [
        r"\boxed{\frac{\pi}{6}}", r"\boxed{-\frac{6}{\pi}}", r"\boxed{-30^\circ}",
    ]),
    (r"7\pi", [
        r"\boxed{7 \pi}", r"\boxed{7\cdot\pi}",
    ], [
        r"\boxed{7}", r"\boxed{7 pi units}", r"\boxed{\pi^7}", r"\boxed{21.99}",
    ]),
    ("6 - 5i", [
        r"\boxed{6-5i}",
    ], [
        r"\boxed{6+5i}", r"\boxed{6 - 5\mathrm{i}x}", r"\boxed{6-5}", r"\boxed{1}",
    ]),
    ("x=5", [
        r"\boxed{5}", r"\boxed{x=5}",
    ], [
        r"\boxed{x=-5}", r"\boxed{x}", r"\boxed{2x=5}", r"\boxed{x=5, x=6}",
    ]),
    ("y = 2x + 3", [
        r"\boxed{y=2x+3}", r"\boxed{2x+3}",
    ], [
        r"\boxed{y=2x}", r"\boxed{2x-y=-3}",
    ]),
    ("1,-2", [
        r"\boxed{1, -2}",
    ], [
        r"\boxed{1}", r"\boxed{-2}", r"\boxed{1,2}", r"\boxed{(1,-2)}",
    ]),
    (r"\{1\pm\sqrt{5},-2\}", [
        r"\boxed{\{1 \pm \sqrt5, -2\}}", r"\boxed{\left\{1\pm\sqrt{5},-2\right\}}",
    ], [
        r"\boxed{1\pm\sqrt{5},-2}",
    ]),
    ("52_8", [
        r"\boxed{52_{8}}", r"\boxed{52_8}",
    ], [
        r"\boxed{52}", r"\boxed{528}", r"\boxed{42_{10}}",
    ]),
    ("5r^5", [
        r"\boxed{5r^{5}}",
    ], [
        r"\boxed{5r}", r"\boxed{5r5}",
    ]),
]  # fmt: skip

TINY: Pairs = [
    ({"type": "number", "value": 5}, [
        "#### 5", "2 + 3 = 5\n#### 5", "#### 5.0", "####5", "#### 5\n",
    ], [
        "5", "", "#### 5 stamps", "#### 55", "#### -5", "#### 5,000", "#### 5\nand more", "### 5", "#### five",
        "#### 5/1", "#### 4",
    ]),
    ({"type": "list", "value": [6, 11]}, [
        "Result: [6, 11]", "[6, 11]", "1 + 5\n[6,11]\n", "[1] [6, 11]",
    ], [
        "[11, 6]", "[6, 11", "[6, 11.0]", "[6, 11, 11]", "6, 11", "[6, 11] ok", "[[6, 11]]", "(6, 11)", '["6", 11]',
        "[]", "",
    ]),
    ({"type": "json", "value": [{"a": 1, "b": "x"}]}, [
        '[{"a": 1, "b": "x"}]', 'so\n[{"b": "x", "a": 1}]', ' [{"a":1,"b":"x"}] ',
    ], [
        '[{"a": true, "b": "x"}]', '[{"a": 1.0, "b": "x"}]', '[{"a": 1}]', "[{'a': 1, 'b': 'x'}]",
        '{"a": 1, "b": "x"}', "[" * 5000, '[{"a": 1, "b": "x"}]\nDone.', '[{"a": 1, "b": "x", "c": 0}]',
        '[{"a": 1, "b": "x"}] [{"a": 1, "b": "x"}]', "null", "",
    ]),
]  # fmt: skip
