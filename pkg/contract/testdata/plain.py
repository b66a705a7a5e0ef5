"""What a plain script does for the same orders: the yardstick of BenchmarkPart. Usage: plain.py pages.ndjson.gz out.gz"""
import gzip
import json
import sys
from datetime import datetime, timezone

CURRENCIES = {"EUR", "USD", "GBP"}


def timestamp(text):
    at = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return at.astimezone(timezone.utc).isoformat()


valid = bad = 0
with gzip.open(sys.argv[1], "rt") as pages, gzip.open(sys.argv[2], "wt", compresslevel=1) as out:
    for page in pages:
        for row in json.loads(page)["data"]:
            try:
                if row["currency"] not in CURRENCIES or float(row["valor"]) < 0:
                    raise ValueError("value")
                item = {
                    "shop": "eu",
                    "order_id": str(row["order_id"]),
                    "email": row["customer"]["email"].strip().lower(),
                    "name": row["customer"]["name"],
                    "total": float(row["valor"]),
                    "currency": row["currency"],
                    "paid": bool(row["paid"]),
                    "lines": int(row["lines"]),
                    "created_at": timestamp(row["created_at"]),
                    "updated_at": timestamp(row["updated_at"]),
                    "items": row["items"],
                    "note": row["note"][:200],
                }
                out.write(json.dumps(item) + "\n")
                valid += 1
            except (KeyError, TypeError, ValueError):
                bad += 1
print(valid, bad)
