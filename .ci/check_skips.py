"""
Fail if a test was skipped for any reason but those allowed, or if no test ran.

    python .ci/check_skips.py REPORT.xml [--all] [ALLOWED ...]

An allowed reason is the beginning of the message of the skip. With --all the report is of all
tests, and README has to say how many ran and were skipped, give or take one in fifty.
"""

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

report, *allowed = sys.argv[1:]
cases = list(ET.parse(report).iter("testcase"))
skipped = [(case, s.get("message", "")) for case in cases for s in case.iter("skipped")]
wrong = [(c, why) for c, why in skipped if not any(why.startswith(a) for a in allowed)]
for case, why in wrong:
    print(f"skipped, but ought to run here: {case.get('classname')}.{case.get('name')}: {why}")
print(f"{len(cases) - len(skipped)} tests ran, {len(skipped)} were skipped, {len(wrong)} wrongly")
if "--all" in allowed:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    ran = len(cases) - len(skipped)
    for said, found in (("about ([0-9,]+) tests", ran), ("([0-9,]+) more that", len(skipped))):
        number = int(re.search(said, readme)[1].replace(",", ""))
        if abs(number - found) > found / 50:
            print(f"README says {number} where there are {found}")
            wrong.append(said)
sys.exit(bool(wrong) or len(skipped) == len(cases))
