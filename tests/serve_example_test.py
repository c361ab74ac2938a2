"""examples/serve answers concurrent requests as it answers each alone, and says what is wrong.

    serve_example_test.py [PROGRAM]

Without PROGRAM it is the example of the build that PENSTOCK_COMMAND lies in (default: build/),
skipped where that is not built.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = pathlib.Path(os.environ.get("PENSTOCK_COMMAND", ROOT / "build/bin/penstock")).with_name(
    "example_serve")
CLIENTS = 16
REQUESTS = 64
TIMEOUT_S = 60


class ServeExampleTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PROGRAM, os.X_OK):
            self.skipTest(f"{PROGRAM} is not built: see scripts/packages")
        self.server = subprocess.Popen([str(PROGRAM)], stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end)
        self.address = re.search(r"http://\S+", self.server.stdout.readline()).group(0)

    def end(self):
        self.server.kill()
        self.server.communicate()

    def post(self, path, body, headers=None):
        """The status and the object that a request is answered with."""
        request = urllib.request.Request(self.address + path, body.encode(), headers or {}, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
                return response.status, json.loads(response.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read() or b"null")

    def predict(self, x):
        return self.post("/predict", json.dumps({"x": x}))

    def test_concurrent_requests_get_the_answers_of_single_ones(self):
        rows = [[(i * 7 % 11) / 5 - 1, i % 3 - 1, i / REQUESTS, 0.5] for i in range(REQUESTS)]
        alone = [self.predict(row) for row in rows]
        for status, answer in alone:
            self.assertEqual(status, 200)
            self.assertEqual(len(answer["p"]), 3)
            self.assertAlmostEqual(sum(answer["p"]), 1, places=5)
        self.assertGreater(len({tuple(answer["p"]) for _, answer in alone}), REQUESTS // 2)
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as clients:
            self.assertEqual(list(clients.map(self.predict, rows)), alone)

    def test_wrong_requests_are_refused_and_the_service_goes_on(self):
        for body in ("", "no json", "[1]", '{"x": 3}', '{"x": [1, 2, 3]}', '{"x": [1, 2, 3, "a"]}'):
            status, answer = self.post("/predict", body)
            self.assertEqual(status, 400, body)
            self.assertIn("expected", answer["error"])
        self.assertEqual(self.post("/predict", "x" * (1 << 17))[0], 413)
        self.assertEqual(self.predict([1, 2, 3, 4])[0], 200)

    def test_pages_of_other_servers_are_refused(self):
        port = self.address.rsplit(":", 1)[1]
        for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"},
                        {"Host": f"evil.example:{port}"}, {"Host": "localhost:1"},
                        {"Host": f"localhost:{port}", "Origin": f"http://evil.example:{port}"}):
            for path in ("/predict", "/quit"):
                self.assertEqual(self.post(path, '{"x": [1, 2, 3, 4]}', headers)[0], 403, headers)
        own = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
        self.assertEqual(self.post("/predict", '{"x": [1, 2, 3, 4]}', own)[0], 200)

    def test_it_ends_when_it_is_told_to(self):
        self.assertEqual(self.post("/quit", "")[0], 200)
        self.assertEqual(self.server.wait(timeout=TIMEOUT_S), 0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
