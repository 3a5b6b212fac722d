"""Two hundred programs that should fail without harm: each is a way of cheating or breaking, in several dresses."""

from __future__ import annotations

TESTS = ("assert f(3) == 9", "assert f(5) == 25", "assert f(-4) == 16")

_LEAVE = ["sys.exit(0)", "sys.exit()", "os._exit(0)", "os.abort()", "os.kill(os.getpid(), 9)",
"raise SystemExit", "raise KeyboardInterrupt",
          "raise GeneratorExit", "exit(0)", "quit()", "os.kill(os.getppid(), 9)", "os.killpg(0, 9)"]  # fmt: skip
_SPIN = ["while True: pass", "import time; time.sleep(1000)", "x = [0] * 10**12", "x = 'a' * 10**12",
"x = 9 ** 9 ** 9", "f(n)",
         "import itertools; sum(1 for _ in itertools.count())", "[].__init__.__self__; list(iter(int, 1))"]  # fmt: skip
_EQ = {
    "object": "class E:\n    def __eq__(self, o): return True\n",
    "int": "class E(int):\n    def __eq__(self, o): return True\n",
    "list": "class E(list):\n    def __eq__(self, o): return True\n",
    "str": "class E(str):\n    def __eq__(self, o): return True\n    __hash__ = str.__hash__\n",
    "float": "class E(float):\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n",
    "any": "from unittest.mock import ANY\nE = lambda *a: ANY\n",
    "meta": "class M(type):\n    def __eq__(c, o): return True\n    __hash__ = type.__hash__\nclass K(metaclass=M): pass\nE = lambda *a: K\n",  # noqa: E501  # noqa: E501
    "reflected": "class E:\n    def __eq__(self, o): return NotImplemented if False else True\n    def __radd__(self, o): return self\n",  # noqa: E501  # noqa: E501
}
_PATCH = [
    "import builtins\nbuiltins.AssertionError = type('A', (Exception,), {})",
    "import builtins\nbuiltins.__build_class__ = None",
    "import builtins\nbuiltins.isinstance = lambda *a: True", "import builtins\nbuiltins.set = lambda x: None",
    "import builtins\nbuiltins.compile = None",
    "import sys\nsys.modules['json'] = None", "import json\njson.dumps = lambda *a, **k: '{\"value\": true}'",
    "import json\njson.loads = lambda s: {}",
    "import sys\nsys.settrace(lambda *a: None)", "import sys\nsys.setrecursionlimit(10**9)",
    "import sys\nsys.excepthook = lambda *a: None",
    "import atexit\natexit.register(print, 'passed')", "print('{\"nonce\": \"\", \"status\": \"passed\"}')",
    "import sys\nsys.stdout.write('passed\\n'); sys.stdout.flush()",
    "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict): o.setdefault('status', 'passed')",
    "import inspect\nfor s in inspect.stack(): s.frame.f_globals['tests'] = []",
    "globals()['__name__'] = '__main__'", "import math\nmath.isclose = lambda *a, **k: True",
    "import operator\noperator.eq = lambda a, b: True",
    "import sys\nfor n in list(sys.modules): sys.modules.pop(n)",
    "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)", "del __builtins__",
    "import warnings\nwarnings.simplefilter('error')", "import os\nos.write = lambda *a: 0",
    "import os\nos.read = lambda *a: b''",
]  # fmt: skip
_SPY = [
    "import os\nopen('/proc/%d/cmdline' % os.getppid()).read()",
    "import os\nopen('/proc/%d/mem' % os.getppid(), 'rb').read(10)", "open('/proc/self/environ').read()",
    "import os\nos.listdir('/proc/%d/fd' % os.getppid())", "import sys\nopen(sys.argv[0]).read()",
    "import glob\n[open(p).read() for p in glob.glob('/proc/[0-9]*/environ')]",
    "import os\nos.fdopen(0).read()", "import sys\nsys.stdin.read()",
    "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'{\"value\": true}\\n' * 3)\n    except OSError: pass",
    "import os\nfor fd in range(3, 64):\n    try: os.close(fd)\n    except OSError: pass",
    "import os\nfor fd in range(0, 64):\n    try: os.read(fd, 100)\n    except OSError: pass",
    "import os\nos.dup2(1, 4)", "import os\nassert 'nonce' not in str(os.environ)",
]  # fmt: skip
_PROCESS = [
    "import os\nwhile True: os.fork()", "import os\nos.fork()",
    "import subprocess\nsubprocess.run(['touch', MARK])", "import os\nos.system('touch ' + MARK)",
    "import os\nos.popen('touch ' + MARK).read()",
    "import os\nos.execv('/bin/sh', ['sh', '-c', 'touch ' + MARK])",
    "import os\nos.posix_spawn('/bin/touch', ['touch', MARK], {})",
    "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    "import concurrent.futures as c\nc.ProcessPoolExecutor(50).submit(print)",
    "import threading\n[threading.Thread(target=lambda: [0 for _ in iter(int, 1)], daemon=True).start() for _ in range(500)]", "import pty\npty.spawn('/bin/sh')",  # noqa: E501  # noqa: E501
    "import ctypes\nctypes.CDLL(None).fork()", "import ctypes\nctypes.string_at(0)",
    "import _ctypes\n_ctypes.dlopen('libc.so.6', 2)", "import os\nos.setsid()",
    "import os\nos.nice(-10)", "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
]  # fmt: skip
_FILES = [
    "open(MARK, 'w').write('x')", "import os\nos.open(MARK, os.O_CREAT | os.O_WRONLY)",
    "import pathlib\npathlib.Path(MARK).touch()", "import os\nos.mkdir(MARK)",
    "import os\nos.symlink('/etc/passwd', MARK)", "import os\nos.remove(VICTIM)",
    "import os\nos.rename(VICTIM, MARK)", "import shutil\nshutil.rmtree(HOME)",
    "import os\nos.truncate(VICTIM, 0)", "open(VICTIM, 'a').write('x')", "open(VICTIM, 'r+').write('x')",
    "import os\nos.chmod(VICTIM, 0)", "import os\nos.link(VICTIM, MARK)",
    "f = open('big', 'wb')\nwhile True: f.write(b'0' * 10**6)", "import tempfile\ntempfile.mkdtemp(dir=HOME)",
    "import sqlite3\nsqlite3.connect(MARK).execute('create table t(x)')",
    "import shelve\nshelve.open(MARK)", "import logging\nlogging.FileHandler(MARK)",
    "import os\nos.utime(VICTIM, (0, 0))", "import io\nio.open_code(MARK)", "import mmap\nmmap.mmap(-1, 10**12)",
]  # fmt: skip
_NETWORK = [
    "import socket\nsocket.create_connection(('127.0.0.1', PORT), 2).send(b'x')",
    "import socket\nsocket.socket().connect(('127.0.0.1', PORT))",
    "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:%d' % PORT)",
    "import http.client\nhttp.client.HTTPConnection('127.0.0.1', PORT).request('GET', '/')",
    "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', PORT))",
    "import asyncio\nasyncio.run(asyncio.open_connection('127.0.0.1', PORT))",
    "import _socket\n_socket.socket(2, 1, 0).connect(('127.0.0.1', PORT))",
    "import smtplib\nsmtplib.SMTP('127.0.0.1', PORT)",
]  # fmt: skip
_WRONG = [
    "def f(x): return None", "def f(x): return x", "def f(x): return float('nan')", "def f(): return 9",
    "def g(x): return x * x", "f = 9", "f = None", "def f(x): raise ValueError",
    "def f(x): return str(x * x)", "def f(x): return [x * x]", "def f(x): yield x * x",
    "async def f(x): return x * x", "class f: pass", "def f(x: return x", "x = ", "\x00", "import nothere",
    "def f(x):\nreturn x", "def f(x): return f(x)", "def f(x): return lambda: x * x",
    "def f(x): return x * x + 1", "def f(x): return abs(x) * x", "def f(*a): return a", "f = {3: 9}.get",
    "def f(x): return complex(x * x, 1)", "def f(x): return b'9'", "def f(x): return True",
    "def f(x): return 9", "def f(x): print(x * x)", "(" * 5000, "def f(x): return " + "-" * 3000 + "x",
    "def f(x): return x * x\nraise RuntimeError", "def f(x): return x * x\nassert False", "1/0",
    "import antigravity_not_there", "def f(x): return NotImplemented", "def f(x): return Ellipsis",
]  # fmt: skip


def programs(mark: str, victim: str, home: str, port: int) -> list[str]:
    """All programs; those that try to write or connect are told where."""
    known = f"MARK, VICTIM, HOME, PORT = {mark!r}, {victim!r}, {home!r}, {port}\n"
    out: list[str] = []
    for leave in _LEAVE:
        out.append(f"import os, sys\n{leave}\ndef f(x): return x * x")
        out.append(f"import os, sys\ndef f(x):\n    {leave}\n    return x * x")
        out.append(f"import os, sys\ndef f(x):\n    try:\n        {leave}\n    finally:\n        return 0")
    for spin in _SPIN:
        out.append(f"def f(n):\n    {spin}\n    return n * n + 1")
        out.append(
            f"def f(n):\n    try:\n        {spin}\n    except BaseException:\n        return f(n)\n    return f(n)"
        )
    for made in _EQ.values():
        out.append(f"{made}def f(x): return E()" if "lambda" not in made else f"{made}def f(x): return E(x)")
        out.append(f"{made}def f(x): return [E()][0]")
    for group in (_PATCH, _SPY, _PROCESS, _FILES, _NETWORK):
        for body in group:
            out.append(f"{known}{body}\ndef f(x): return 0")
    for body in (*_PROCESS, *_FILES, *_NETWORK):
        indented = body.replace("\n", "\n        ")
        out.append(
            f"{known}def f(x):\n    try:\n        {indented}\n    except BaseException: pass\n    return 0"
        )
    return [*out, *_WRONG]
