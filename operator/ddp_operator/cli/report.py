"""`ddpjob report`: write one HTML page about a run."""

import contextlib
import os
from pathlib import Path

from ddp_operator.api.job import InvalidJobError
from ddp_operator.cli.report_data import NoRunError, read_cluster, read_directory
from ddp_operator.cluster.errors import NoClusterError
from ddp_operator.report.page import Report, build_page


class ReportError(Exception):
    """Error for a report that cannot be written. The message is one sentence for the user."""


def write_report(
    target: str,
    output: Path | None,
    *,
    namespace: str | None = None,
    context: str | None = None,
    run_directory: Path | None = None,
) -> Path:
    """Write the report of a job or of a directory. Return the path of the page.

    Args:
        target: An existing directory, or the name of a job on the cluster.
        output: Path of the page. The default is `NAME-report.html` in the current directory.
        namespace: Namespace of the job.
        context: Context of the kubeconfig.
        run_directory: The run's directory of a job, if the volume is mounted here.

    Raises:
        ReportError: The directory cannot be read, or the page cannot be written.
        NoSuchJobError: There is no such job.
        ClusterError: The job cannot be read.
    """
    try:
        if target and (Path(target).is_dir() or os.sep in target):
            report = read_directory(Path(target))
        else:
            report = read_cluster(target, namespace, context, run_directory)
    except NoClusterError as error:
        raise ReportError(f"there is no folder {target} here, and {error}") from error
    except (NoRunError, InvalidJobError) as error:
        raise ReportError(str(error)) from error
    except OSError as error:
        raise ReportError(f"{error.filename}: cannot be read: {error.strerror}") from error
    return _write(report, output or Path(f"{report.name}-report.html"))


def _write(report: Report, path: Path) -> Path:
    """Replace the page in one step, so that a browser never loads an incomplete page."""
    if not path.name:
        raise ReportError("the output must be the path of a file")
    pending = path.with_name(f".{path.name}.tmp")
    try:
        pending.write_text(build_page(report), encoding="utf-8")
        pending.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            pending.unlink()
        raise ReportError(f"{path}: cannot be written: {error.strerror}") from error
    return path
