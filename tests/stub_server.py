"""A server of completions for the tests: started as a program, with flags as real ones have them.

Its log-probabilities are made up from token ids alone. ``--sharpness`` multiplies them, which is a
drift; ``--pace`` changes nothing. It knows no other flags, and refuses them as argparse does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


def logprobs_of(ids: list[int], sharpness: float) -> list[float | None]:
    """Of an echoed prompt and one generated token; of the first none is known."""
    known = [-sharpness * (0.1 + (7 * token + 3 * place) % 11 / 4) for place, token in
             enumerate(ids)]  # fmt: skip
    return [None, *known[1:], -0.5]


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", default="stub")
    parser.add_argument("--sharpness", type=float, default=1.0)
    parser.add_argument("--pace", type=int, default=1)
    # a file that gets a line for every start
    parser.add_argument("--starts", type=Path, default=os.environ.get("STUB_STARTS"))
    parser.add_argument("--sleep-first", type=float, default=0.0)
    parser.add_argument("--die", default="", help="end at once, with these words")
    parser.add_argument("--die-after", type=int, default=-1, help="end after so many answers")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--with-child", action="store_true")
    parser.add_argument("--no-pace-alone", action="store_true")
    parser.add_argument("--hang-pace-alone", action="store_true", help="never answer, then")
    asked = parser.parse_args()
    print(f"stub server with {sys.argv[1:]}", flush=True)
    if asked.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = ""
    if asked.with_child:  # in a session of its own, as some servers have their workers
        number = os.fork()
        if not number:
            os.setsid()
            time.sleep(600)
            os._exit(0)
        child = str(number)
    if asked.starts:
        with Path(asked.starts).open("a", encoding="utf-8") as starts:
            words = " ".join(sys.argv[1:])
            starts.write(f"{os.getpid()} {child} | {words} | {os.environ.get('STUB', '')}\n")
    time.sleep(asked.sleep_first)
    if asked.no_pace_alone and asked.pace > 1 and asked.sharpness == 1.0:
        sys.exit("this pace needs another sharpness")
    if asked.die:
        sys.exit(asked.die)
    sharpness = asked.sharpness * float(os.environ.get("STUB_SHARPNESS", "1"))
    answers = 0

    class Completions(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            nonlocal answers
            answers += 1
            print("asked", flush=True)
            if answers > asked.die_after >= 0:
                print("the stub runs out of memory", flush=True)
                os._exit(9)
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if asked.hang_pace_alone and asked.pace > 1 and asked.sharpness == 1.0:
                time.sleep(600)
            choices = []
            for index, ids in enumerate(body["prompt"]):
                given = logprobs_of(ids, sharpness)
                tops: list[dict[str, Any]] = [{"x": one} for one in given]
                logprobs = {"token_logprobs": given, "top_logprobs": tops}
                choices.append({"index": index, "text": "", "logprobs": logprobs})
            self._say({"model": body["model"], "choices": choices})

        def do_GET(self) -> None:
            if self.path in ("/v1/models", "/health"):
                self._say({"data": [{"id": "stub"}]})
            else:
                self.send_error(404)

        def _say(self, what: Any) -> None:
            text = json.dumps(what).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    ThreadingHTTPServer(("127.0.0.1", asked.port), Completions).serve_forever()


if __name__ == "__main__":
    main()
