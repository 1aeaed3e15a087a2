"""
Fail if a test was skipped for any reason but those allowed, or if no test ran.

    python .ci/check_skips.py REPORT.xml [ALLOWED ...]

An allowed reason is the beginning of the message of the skip.
"""

import sys
import xml.etree.ElementTree as ET

report, *allowed = sys.argv[1:]
cases = list(ET.parse(report).iter("testcase"))
skipped = [(case, s.get("message", "")) for case in cases for s in case.iter("skipped")]
wrong = [(c, why) for c, why in skipped if not any(why.startswith(a) for a in allowed)]
for case, why in wrong:
    print(f"skipped, but ought to run here: {case.get('classname')}.{case.get('name')}: {why}")
print(f"{len(cases) - len(skipped)} tests ran, {len(skipped)} were skipped, {len(wrong)} wrongly")
sys.exit(bool(wrong) or len(skipped) == len(cases))
