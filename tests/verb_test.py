"""What tests of a verb of the program share: how it is run, and what good and refused runs look like."""
import json
import pathlib
import subprocess
import tempfile
import unittest


class VerbTest(unittest.TestCase):
    """A verb of the program, in a folder of its own. `command` begins each run, `timeout` ends it (seconds)."""

    command = []
    timeout = 300

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_program(self, *arguments, text=True):
        return subprocess.run([*self.command, *arguments], capture_output=True, text=text, timeout=self.timeout, check=False)

    def good(self, *arguments):
        done = self.run_program(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        self.assertEqual(done.stderr, "")  # quiet in a pipe: no progress bar
        return done.stdout

    def json(self, *arguments):
        return json.loads(self.good(*arguments, "--json"))

    def refused(self, wanted, *arguments, code=2):
        done = self.run_program(*arguments)
        self.assertEqual(done.returncode, code, done.stderr + done.stdout)
        self.assertEqual(done.stdout, "")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("mlaverify: "), done.stderr)
        self.assertIn(wanted, done.stderr)
