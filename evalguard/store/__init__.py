"""What evalguard keeps on disk: finished scores, floors, the folder of a run."""

from evalguard.store.block_cache import BlockCache
from evalguard.store.budget_store import BudgetStore
from evalguard.store.cache_location import default_cache_dir, open_cache_dir
from evalguard.store.fact_cache import FactCache, open_facts
from evalguard.store.file_digests import FileDigests
from evalguard.store.file_lock import FileLock
from evalguard.store.file_name import safe_name
from evalguard.store.floor_store import FloorStore
from evalguard.store.inventory import inventory
from evalguard.store.journal import Journal
from evalguard.store.journal_entry import Entry
from evalguard.store.night_journal import NightJournal
from evalguard.store.output_file import check_output, write_output
from evalguard.store.pruning import PruneRules, prune
from evalguard.store.record_cache import DivergenceCache, ReferenceCache
from evalguard.store.reference_file import ReferenceFile
from evalguard.store.reference_writer import ReferenceWriter
from evalguard.store.result_file import read_document, read_result
from evalguard.store.run_file_check import check_run_file
from evalguard.store.run_folder import RunFolder, check_writable, write_document, write_text
from evalguard.store.run_tables import (
    read_sample_facts,
    read_samples,
    read_tokens,
    sample_column_names,
    sample_files,
    token_files,
)
from evalguard.store.score_cache import ScoreCache

__all__ = [
    "BlockCache",
    "BudgetStore",
    "DivergenceCache",
    "Entry",
    "FactCache",
    "FileDigests",
    "FileLock",
    "FloorStore",
    "Journal",
    "NightJournal",
    "PruneRules",
    "ReferenceCache",
    "ReferenceFile",
    "ReferenceWriter",
    "RunFolder",
    "ScoreCache",
    "check_output",
    "check_run_file",
    "check_writable",
    "default_cache_dir",
    "inventory",
    "open_cache_dir",
    "open_facts",
    "prune",
    "read_document",
    "read_result",
    "read_sample_facts",
    "read_samples",
    "read_tokens",
    "safe_name",
    "sample_column_names",
    "sample_files",
    "token_files",
    "write_document",
    "write_output",
    "write_text",
]
