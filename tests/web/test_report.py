"""The HTML report in a real browser that can reach nothing, and its text without one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.support.ui import WebDriverWait
from typer.testing import CliRunner

from serve_app.cli.main import app

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
WAIT_S = 30
EVIL = "<script>window.evil=1</script><img src=x onerror='window.evil=1'>"

NO_BROWSER = "no browser: install Debian's chromium and chromium-driver"

pytestmark = pytest.mark.timeout(180)


def write_report(path: Path, *arguments: str, workload: str | None = None) -> str:
    """The report's text; the workload is the example or this one."""
    given = ["--workload", "-"] if workload is not None else []
    result = CliRunner().invoke(app, ["simulate", "--html", str(path), *given, *arguments], input=workload)
    assert result.exit_code == 0, result.output
    assert str(path) in "".join(result.stderr.split())
    return path.read_text("utf-8")


def application(name: str, tenant: str) -> str:
    call = {"name": "x", "prompt_tokens": 500, "output_tokens": 100}
    document = {"application_id": name, "application_type": EVIL, "tenant": tenant, "arrival_s": 0, "calls": [call]}
    return json.dumps(document) + "\n"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, "--policies", "fcfs,vtc,justitia", "--limit", "30")
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """A headless browser without a network, whose console can be read."""
    if CHROMIUM is None or DRIVER is None:
        pytest.skip(NO_BROWSER)
    options = ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(argument)
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.add_argument("--window-size=1200,900")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=ChromeService(executable_path=DRIVER))
    driver.set_page_load_timeout(WAIT_S)
    yield driver
    driver.quit()


def log_of(browser: Chrome, kind: str) -> list[dict[str, Any]]:
    """What was logged since the last time."""
    entries: list[dict[str, Any]] = browser.get_log(kind)  # type: ignore[no-untyped-call]
    return entries


def open_report(browser: Chrome, path: Path) -> None:
    """Open a report and wait until every chart is drawn; nothing is complained of and nothing is fetched."""
    log_of(browser, "performance")
    browser.get(path.as_uri())
    script = (
        "return [...document.querySelectorAll('.plotly-graph-div')].every(chart => chart.querySelector('.main-svg'))"
    )
    WebDriverWait(browser, WAIT_S).until(lambda driver: driver.execute_script(script))
    assert log_of(browser, "browser") == []
    assert [url for url in fetched(browser) if not url.startswith(("file:", "data:", "blob:"))] == []


def fetched(browser: Chrome) -> Iterator[str]:
    for entry in log_of(browser, "performance"):
        message = json.loads(entry["message"])["message"]
        if message["method"] == "Network.requestWillBeSent":
            yield message["params"]["request"]["url"]


def charts(browser: Chrome) -> dict[str, list[str]]:
    """The names of the drawn traces by chart."""
    script = """return Object.fromEntries([...document.querySelectorAll('.plotly-graph-div')].map(
        chart => [chart.id, chart.data.map(trace => trace.name)]))"""
    found: dict[str, list[str]] = browser.execute_script(script)
    return found


def test_every_chart_is_drawn_without_a_network(browser: Chrome, report: Path) -> None:
    open_report(browser, report)
    policies = ["fcfs", "vtc", "justitia"]
    assert charts(browser) == {
        "chart-completion-time": ["mean", "P90"],
        "chart-distribution-of-completion-times": policies,
        "chart-ratio-to-vtc": ["fcfs", "justitia"],
        "chart-service-gap-between-tenants": policies,
    }
    drawn = "return document.querySelectorAll('#chart-completion-time .bars .point').length"
    assert browser.execute_script(drawn) == 6
    lines = "return document.querySelectorAll('#chart-ratio-to-vtc .scatterlayer .trace .js-line').length"
    assert browser.execute_script(lines) == 2


def test_tables_hold_every_policy_and_type(browser: Chrome, report: Path) -> None:
    open_report(browser, report)
    script = "return [...document.querySelectorAll('table')].map(table => table.innerText)"
    summary, by_type, by_tenant = browser.execute_script(script)
    assert all(name in summary for name in ("fcfs", "vtc", "justitia", "≤ vtc", "worst ×"))
    assert all(name in by_type for name in ("question", "summary", "justitia"))
    assert all(name in by_tenant for name in ("library", "support"))


@pytest.mark.parametrize("width", [380, 1200])
def test_the_page_is_no_wider_than_its_window(browser: Chrome, report: Path, width: int) -> None:
    browser.set_window_size(width, 900)
    open_report(browser, report)
    script = "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    inside, window = browser.execute_script(script)
    assert inside <= window


def test_names_from_a_workload_are_text(browser: Chrome, tmp_path: Path) -> None:
    path = tmp_path / "evil.html"
    workload = "".join(application(f"a{number}{EVIL}", EVIL) for number in range(3))
    write_report(path, "--policies", "vtc,justitia", workload=workload)
    open_report(browser, path)
    assert browser.execute_script("return window.evil") is None
    assert EVIL in browser.execute_script("return document.body.innerText")


# ---- without a browser


def test_the_same_runs_give_the_same_report(report: Path, tmp_path: Path) -> None:
    again = write_report(tmp_path / report.name, "--policies", "fcfs,vtc,justitia", "--limit", "30")
    assert again == report.read_text("utf-8")


def test_without_yardstick_and_tenants_the_report_says_so(tmp_path: Path) -> None:
    text = write_report(tmp_path / "r.html", "--policies", "fcfs", workload=application("a", "t"))
    assert "No yardstick was chosen" in text
    assert "Never did two tenants wait" in text
    assert 'id="chart-ratio' not in text


def test_nothing_in_the_report_points_outside(report: Path) -> None:
    text = report.read_text("utf-8")
    begin, end = text.index("<script>"), text.index("</script>")
    assert "<script src" not in text
    assert '<link rel="stylesheet' not in text
    assert "http" not in text[:begin] + text[end:].replace("http://www.w3.org", "")
