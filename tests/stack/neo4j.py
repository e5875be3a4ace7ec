"""A real Neo4j Community server from its jars, Bolt on loopback alone, authentication on."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

from neo4j import GraphDatabase

from tests.stack.model import Server, StackError
from tests.stack.process import cache_folder, free_port, spawn, wait_ready

VERSION = "5.26.0"
POM = Path(__file__).with_name("neo4j-pom.xml")
CONFIGURATION = """\
server.default_listen_address=127.0.0.1
server.bolt.listen_address=127.0.0.1:{port}
server.http.enabled=false
server.https.enabled=false
server.memory.pagecache.size=256m
db.tx_log.rotation.retention_policy=keep_none
dbms.usage_report.enabled=false
dbms.security.auth_enabled=true
"""
FIRST_PASSWORD = "neo4j"  # what a new server starts with; replaced before anybody else sees it


def start(folder: Path) -> Server:
    """Start an empty server with its home in `folder`/neo4j."""
    fetch()
    home, log = folder / "neo4j", folder / "neo4j.log"
    shutil.rmtree(home, ignore_errors=True)
    (home / "conf").mkdir(parents=True)
    port, password = free_port(), secrets.token_urlsafe(18)
    (home / "conf" / "neo4j.conf").write_text(CONFIGURATION.format(port=port), encoding="utf-8")
    process = _spawn(home)

    def probe() -> None:
        # A probe that changed the password and then lost its connection must not lock itself out.
        for current in (password, FIRST_PASSWORD):
            with GraphDatabase.driver(f"bolt://127.0.0.1:{port}", auth=("neo4j", current)) as driver:
                try:
                    with driver.session(database="system") as session:
                        if current == FIRST_PASSWORD:
                            session.run(
                                "ALTER CURRENT USER SET PASSWORD FROM $old TO $new", old=current, new=password
                            ).consume()
                        session.run("SHOW DATABASES").consume()
                except Exception:
                    if current == FIRST_PASSWORD:
                        raise
                else:
                    break
        with GraphDatabase.driver(f"bolt://127.0.0.1:{port}", auth=("neo4j", password)) as driver:
            driver.execute_query("RETURN 1")

    wait_ready("Neo4j", process, probe, seconds=240, log=log)
    return Server(port=port, user="neo4j", password=password, group=process.pid, data=home)


def start_again(server: Server) -> Server:
    """Start the server on its existing home at the same address, after a crash too. Its group is a new one."""
    assert server.data is not None
    process = _spawn(server.data)

    def probe() -> None:
        auth = (server.user, server.password)
        with GraphDatabase.driver(f"bolt://127.0.0.1:{server.port}", auth=auth) as driver:
            driver.execute_query("RETURN 1")

    wait_ready("Neo4j", process, probe, seconds=300, log=server.data.with_suffix(".log"))
    return server.model_copy(update={"group": process.pid})


def _spawn(home: Path) -> subprocess.Popen[bytes]:
    libraries = fetch()
    return spawn(
        [
            "java",
            "-Xms256m",
            "-Xmx512m",
            "-XX:+UseSerialGC",
            "--add-opens=java.base/java.nio=ALL-UNNAMED",
            "--add-opens=java.base/java.lang=ALL-UNNAMED",
            "-cp",
            f"{libraries}/*",
            "org.neo4j.server.CommunityEntryPoint",
            f"--home-dir={home}",
            f"--config-dir={home / 'conf'}",
        ],
        log=home.with_suffix(".log"),
        cwd=home,
    )


def fetch() -> Path:
    """The folder of Neo4j's jars; fetched by Maven the first time and kept outside the tree."""
    folder = cache_folder(f"neo4j-{VERSION}")
    libraries = folder / "lib"
    if libraries.is_dir():
        return libraries
    for program, package in (("mvn", "maven"), ("java", "openjdk-17-jre-headless")):
        if shutil.which(program) is None:
            raise StackError(f"{program} is missing: install the package {package} (apt-get install {package})")
    with tempfile.TemporaryDirectory(dir=folder) as partial:
        target = Path(partial) / "lib"
        command = ["mvn", "-B", "-q", "-f", str(POM), "dependency:copy-dependencies"]
        result = subprocess.run(
            [*command, "-DincludeScope=runtime", f"-DoutputDirectory={target}"], capture_output=True, text=True
        )
        if result.returncode != 0:
            raise StackError(f"Neo4j cannot be fetched:\n{result.stdout[-2000:]}")
        try:
            target.rename(libraries)
        except OSError:
            if not libraries.is_dir():  # somebody else was faster otherwise
                raise
    return libraries
