"""What a plain script does for the same orders: the yardstick of BenchmarkPart. Usage: plain.py pages.ndjson.gz out.gz"""
import gzip
import hashlib
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
                digest = hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest()[:32]
                item["_pk"] = item["shop"] + "#" + item["order_id"]
                item["_rank"] = "0001|" + item["updated_at"] + "|0001.0001|" + digest
                item["_batch"] = "orders/20261130T100000Z"
                item["_run"] = "orders/20261130T100000Z/1/1.1"
                item["_ingested_at"] = "2026-11-30T11:05:07Z"
                out.write(json.dumps(item, sort_keys=True) + "\n")
                valid += 1
            except (KeyError, TypeError, ValueError):
                bad += 1
print(valid, bad)
