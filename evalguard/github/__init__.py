"""GitHub: the job that runs, and the comments of its pull request. Standard library only."""

from evalguard.github.comments import put_comment
from evalguard.github.job import GithubJob, job_of

__all__ = ["GithubJob", "job_of", "put_comment"]
