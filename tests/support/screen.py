"""A terminal with a screen, as a person has it: tests ask what is shown, not what was written."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios

import pyte

from command_line import MODULE


class Screen:
    """The command on a terminal of its own.

    Args:
        arguments: The command line.
        size: Columns and rows.
        environment: What is set besides.
    """

    def __init__(self, *arguments, size=(100, 50), environment=None, cwd=None):
        self._own, theirs = pty.openpty()
        self._resize(size)
        own = self._own

        class Answering(pyte.HistoryScreen):
            """Tells where its cursor is, as terminals do."""

            def write_process_input(self, data):
                os.write(own, data.encode())

        self._screen = Answering(*size, history=10_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self.process = subprocess.Popen(
            [*MODULE, *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env=os.environ | {"TERM": "xterm-256color"} | (environment or {}),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self._own)

    def _resize(self, size):
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))

    def resize(self, *size):
        """Another number of columns and rows, as when a window is pulled."""
        self._screen.resize(size[1], size[0])
        self._resize(size)
        self.process.send_signal(signal.SIGWINCH)

    def write(self, keys):
        """Send bytes, as of keys."""
        while keys:
            keys = keys[os.write(self._own, keys) :]

    def type(self, text):
        """Press keys."""
        self.write(text.encode())

    def paste(self, text):
        """Paste, as terminals mark it."""
        self.type(f"\x1b[200~{text}\x1b[201~")

    @property
    def rows(self):
        """What is shown, row by row, and before it what has left the screen."""
        above = ["".join(cell.data for cell in row) for row in self._above]
        return [row.rstrip() for row in (*above, *self._screen.display)]

    @property
    def cells(self):
        """What is shown, row by row, each cell with its colours."""
        across, down = range(self._screen.columns), range(self._screen.lines)
        return [*self._above, *([self._screen.buffer[row][at] for at in across] for row in down)]

    @property
    def _above(self):
        across = range(self._screen.columns)
        return [[row[at] for at in across] for row in self._screen.history.top]

    @property
    def shown(self):
        """The same as one text."""
        return "\n".join(self.rows).rstrip()

    @property
    def line(self):
        """The row of the cursor."""
        return self._screen.display[self._screen.cursor.y].rstrip()

    def _read(self):
        """Show what has come; whether anybody still holds the other end."""
        try:
            self._stream.feed(os.read(self._own, 1 << 16))
        except OSError:
            return False
        return True

    def until(self, condition, seconds=300):
        """Read until a condition holds, or a text is shown."""
        holds = condition if callable(condition) else lambda: condition in self.shown
        while not holds():
            ready, _, _ = select.select([self._own], [], [], seconds)
            assert ready, self.shown
            if not self._read():
                assert holds(), self.shown
                return

    def press_until(self, key, holds):
        """Press a key again and again: what comes just before readline waits has no effect."""
        for _ in range(50):
            self.type(key)
            while not holds() and select.select([self._own], [], [], 60)[0]:
                if not self._read():
                    self.process.wait(300)
            if holds():
                return
        raise AssertionError(self.shown)

    def until_asked(self, num_before):
        """Read until a message is expected, once more than `num_before` times."""
        self.until(lambda: self.num_asked > num_before and self.line.startswith(">"))

    @property
    def num_asked(self):
        """How many rows begin with the prompt."""
        return sum(row.startswith(">") for row in self.rows)

    def ended(self, seconds=300):
        """Read to the end; the exit code."""
        while select.select([self._own], [], [], seconds)[0] and self._read():
            pass
        return self.process.wait(seconds)
