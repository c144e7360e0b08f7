"""psrun --convert FILE: a table of another program as a .csv file, which data.kind csv reads. By pandas."""
import os

from .errors import JobError
from .screen import tell

# pandas' reader of each ending. Not pickles: whoever reads one runs what its author wrote.
READERS = {".parquet": "read_parquet", ".feather": "read_feather", ".arrow": "read_feather", ".orc": "read_orc",
           ".xlsx": "read_excel", ".xls": "read_excel", ".ods": "read_excel", ".json": "read_json",
           ".jsonl": "read_json", ".dta": "read_stata", ".sav": "read_spss", ".sas7bdat": "read_sas",
           ".html": "read_html", ".xml": "read_xml"}
# Of these the first table is taken.
SEVERAL = {".xlsx": {"sheet_name": None}, ".xls": {"sheet_name": None}, ".ods": {"sheet_name": None}, ".html": {}}
MORE = {".jsonl": {"lines": True}}


def convert(args):
    """Writes the .csv file beside FILE, or --out. Returns the exit code."""
    path = args.convert
    stem, ending = os.path.splitext(path)
    if ending.lower() not in READERS:
        raise JobError(f"--convert {path}: reads files that end in {', '.join(READERS)}; a text file with commas, "
                       "semicolons or tabs needs no conversion")
    if not os.path.isfile(path):
        raise JobError(f"--convert {path}: there is no such file")
    try:
        import pandas
    except ImportError:
        raise JobError("--convert needs pandas: apt-get install python3-pandas, or pip install pandas in a virtual "
                       "environment that is active") from None
    out = args.out or f"{stem}.csv"
    if os.path.isdir(out):
        raise JobError(f"--convert: {out} is a folder: name a .csv file with --out")
    if os.path.exists(out) and (os.path.samefile(out, path) or not args.overwrite):
        raise JobError(f"--convert: {out} is there already: name another with --out, or give --overwrite")
    table, note = _read(pandas, path, ending.lower())
    _write(table, out)
    tell(f"{out}: {len(table)} lines, {len(table.columns)} columns: {', '.join(map(str, table.columns[:20]))}{note}")
    return 0


def _read(pandas, path, ending):
    try:
        table = getattr(pandas, READERS[ending])(path, **SEVERAL.get(ending, {}), **MORE.get(ending, {}))
    except Exception as error:  # whatever a reader of pandas, or a library behind it, says
        text = str(error).strip() or type(error).__name__
        raise JobError(f"--convert {path}: {text.splitlines()[0]}") from None
    note = ""
    if ending in SEVERAL:
        tables = table if isinstance(table, dict) else dict(enumerate(table))
        if not tables:
            raise JobError(f"--convert {path}: holds no table")
        names = list(tables)
        table = tables[names[0]]
        note = f"\nonly the first table, {names[0]}; others: {', '.join(map(str, names[1:]))}" if names[1:] else ""
    if not isinstance(table, pandas.DataFrame) or not len(table.columns):
        raise JobError(f"--convert {path}: holds no table")
    return table, note


def _write(table, out):
    """An index that has a name is a column too."""
    unfinished = f"{out}.tmp"
    try:
        table.to_csv(unfinished, index=any(table.index.names))
        os.replace(unfinished, out)
    except OSError as error:
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise JobError(f"--convert: {out}: {error.strerror}") from None
