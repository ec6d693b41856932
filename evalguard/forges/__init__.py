"""GitHub and GitLab: the job that runs, and what it writes to its pull or merge request.

Standard library only.
"""

from evalguard.forges.github_comment import put_comment
from evalguard.forges.github_job import GithubJob, job_of
from evalguard.forges.gitlab_job import GitlabJob, gitlab_job_of
from evalguard.forges.gitlab_note import put_note

__all__ = ["GithubJob", "GitlabJob", "gitlab_job_of", "job_of", "put_comment", "put_note"]
