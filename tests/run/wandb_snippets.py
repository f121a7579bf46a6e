"""What W&B's scripts commonly do with ``wandb`` and ``run``, and what becomes of it in radt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, eq=False)
class Snippet:
    """Code with ``wandb`` (radt) and ``run`` (begun by ``init``), and what it leaves.

    Attributes:
        source: The code.
        warns: A part of each line on standard error, in order.
        raises: A part of the error that it ends with, if any.
        values: Metrics with all of their values.
        tags: Tags by name.
        params: Parameters by name.
        files: Artifacts.
    """

    source: str
    warns: tuple[str, ...] = ()
    raises: str = ""
    values: Mapping[str, list[float]] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


PAGE = "docs/migrate/wandb.md"
_TABLE = "t = wandb.Table(columns=['x', 'y'], data=[[1, 2], [3, 4]])\n"
_FRAME = "import pandas\nframe = pandas.DataFrame({'x': [1], 'y': [2]})\n"

# fmt: off
VALUES = (
    Snippet("run.log({'a': 1})", values={"a": [1]}),
    Snippet("wandb.log({'a': 1, 'b': 2}, step=3); assert run.step == 3", values={"a": [1]}),
    Snippet("wandb.log({'a': 1}, commit=False); assert run.step == 0", values={"a": [1]}),
    Snippet("run.log({'train': {'a': 1}})", values={"train.a": [1]}),
    Snippet("for _ in range(3): run.log({'a': run.step})", values={"a": [0, 1, 2]}),
    Snippet("run.log({'a': 1}); assert f'{run.step}' == '1' and run.step % 10 == 1"),
    Snippet("run.log({'a': 1}); assert wandb.run.step + 1 == 2 and list(range(run.step)) == [0]"),
    Snippet("run.step(32); run.step(samples=32, time_s=0.1)"),
    Snippet("run.log({'note': 'text'})", ("'note' is not recorded",)),
    Snippet("run.log({'none': None})", ("'none' is not recorded",)),
    Snippet("import numpy as np; run.log({'a': np.float32(0.5)})", values={"a": [0.5]}),
    Snippet("import numpy as np; run.log({'a': np.arange(3)})", ("'a' is not recorded",)),
    Snippet("run.log({'h': wandb.Histogram([1, 2])})", ("'h' is not recorded: radt has nothing",)),
    Snippet("run.log({'v': wandb.Video('a.mp4', fps=4)})", (f"Video. {PAGE}",)),
    Snippet("run.log({'s': wandb.Audio([0], sample_rate=4)})", (f"Audio. {PAGE}",)),
    Snippet("run.log({'o': wandb.Object3D([[1, 2, 3]])})", (f"Object3D. {PAGE}",)),
    Snippet("run.log({'m': wandb.Molecule('a.pdb')})", (f"Molecule. {PAGE}",)),
    Snippet("run.log({'c': [wandb.Video('a'), wandb.Video('b')]})", ("'c' is not recorded",)),
    Snippet("run.define_metric('a', summary='first,max'); run.log({'a': 2}); run.log({'a': 3})\n"
            "assert run.summary['a'] == {'first': 2, 'max': 3}; run.summary['a'] = 9\n"
            "run.log({'a': 1}); assert run.summary['a'] == {'first': 1, 'max': 1}"),
    Snippet("run.define_metric('a', summary='min')\nfor v in 3, 1, 2: run.log({'a': v})\n"
            "assert run.summary['a'] == {'min': 1} and run.summary['a']['min'] == 1",
            values={"a": [3, 1, 2]}),
    Snippet("wandb.define_metric('v/*', summary='max,mean')\n"
            "for v in 3, 1, 2: run.log({'v/a': v})\n"
            "assert wandb.run.summary['v/a'] == {'max': 3, 'mean': 2}"),
    Snippet("run.define_metric('a', summary='best', goal='maximize')\n"
            "run.define_metric('b', summary='best', goal='minimize')\n"
            "for v in float('nan'), 1, 3, 2: run.log({'a': v, 'b': v})\n"
            "assert run.summary['a'] == {'best': 3} and run.summary['b'] == {'best': 1}"),
    Snippet("run.define_metric('a', summary='last'); run.log({'a': 1}); run.log({'a': 2})\n"
            "assert run.summary['a'] == {'last': 2}"),
    Snippet("run.define_metric('a', summary='none'); run.log({'a': 1})"),
    Snippet("run.define_metric('a', hidden=True)"),
    Snippet("run.define_metric('a', step_metric='epoch')", ("step_metric is ignored",)),
    Snippet("run.define_metric('a', summary='median')", raises="got 'median'"),
    Snippet("run.define_metric('a', summary='best')", raises="Expected goal='minimize'"),
    Snippet("run.log({'a': 2}); assert run.summary['a'] == 2"),
    Snippet("run.summary['best'] = 0.5", values={"best": [0.5]}),
    Snippet("wandb.summary['verdict'] = 'good'", tags={"verdict": "good"}),
    Snippet("run.summary.update({'best': 1})", values={"best": [1]}),
)

MEDIA = (
    Snippet("import numpy as np; run.log({'i': wandb.Image(np.zeros((4, 4)))})",
            files=("images/i/step-0.png",)),
    Snippet("import numpy as np; run.log({'i': wandb.Image(np.full((4, 4, 3), 200.0))})",
            files=("images/i/step-0.png",)),
    Snippet("import numpy as np; run.log({'i': wandb.Image(np.full((4, 4, 3), 200))})",
            files=("images/i/step-0.png",)),
    Snippet("import numpy as np; run.log({'i': wandb.Image(np.full((4, 4), -9.0))})",
            ("'i' is not recorded: values of a float image",)),
    Snippet("import torch; run.log({'i': wandb.Image(torch.rand(3, 4, 4))}, step=7)",
            files=("images/i/step-7.png",)),
    Snippet("import PIL.Image; run.log({'i': wandb.Image(PIL.Image.new('RGB', (4, 4)))})",
            files=("images/i/step-0.png",)),
    Snippet("import numpy as np; i = wandb.Image(np.zeros((4, 4)), caption='cat')",
            ("Image: radt does not record caption",)),
    Snippet("import numpy as np; run.log({'i': [wandb.Image(np.zeros((4, 4)))] * 2})",
            files=("images/i/0/step-0.png", "images/i/1/step-0.png")),
    Snippet("run.log({'i': wandb.Image('missing.png')})", ("'i' is not recorded",)),
    Snippet("import matplotlib.pyplot as p; run.log({'f': p.figure()})",
            files=("images/f/step-0.png",)),
    Snippet("import matplotlib.pyplot as p; run.log({'f': wandb.Image(p.figure())})",
            files=("images/f/step-0.png",)),
    Snippet("import plotly.graph_objects as g; run.log({'f': g.Figure()})",
            files=("images/f/step-0.html",)),
    Snippet("import plotly.graph_objects as g; run.log({'f': wandb.Plotly(g.Figure())})",
            files=("images/f/step-0.html",)),
    Snippet("run.log({'page': wandb.Html('<b>hi</b>')})", files=("page/step-0.html",)),
    Snippet(_TABLE + "run.log({'t': t})", files=("tables/t/step-0.json",)),
    Snippet(_TABLE + "t.add_data(5, 6); t.add_column('z', [1, 2, 3])\n"
            "assert t.get_column('y') == [2, 4, 6] and t.columns == ['x', 'y', 'z']\n"
            "run.log({'t': t})",
            files=("tables/t/step-0.json",)),
    Snippet(_TABLE + "t.add_data(5)", raises="Expected a value for each of ['x', 'y']"),
    Snippet("t = wandb.Table(data=[[1, 2, 3]]); assert t.columns[0] == 'Input'"),
    Snippet(_FRAME + "run.log({'t': wandb.Table(dataframe=frame)})",
            files=("tables/t/step-0.json",)),
    Snippet(_FRAME + "run.log({'t': frame})", files=("tables/t/step-0.json",)),
    Snippet("import numpy as np\n"
            "t = wandb.Table(['i', 'v'], [[wandb.Image(np.zeros((4, 4))), wandb.Video('a')]])\n"
            "run.log({'t': t})",
            ("'t': a table has no Video",),
            files=("images/t/i/0/step-0.png", "tables/t/step-0.json")),
    Snippet(_TABLE + "run.log({'c': wandb.plot.line(t, 'x', 'y', title='c')})",
            ("plot.line: the table is recorded",), files=("tables/c/step-0.json",)),
    Snippet(_TABLE + "run.log({'c': wandb.plot_table('mine', t, {})})",
            ("plot.plot_table: the table is recorded",), files=("tables/c/step-0.json",)),
    Snippet("run.log({'c': wandb.plot.confusion_matrix(y_true=[1], preds=[1])})",
            ("radt has nothing like W&B's plot.confusion_matrix",)),
)

FILES = (
    Snippet("run.save('w.pt')", files=("w.pt",)),
    Snippet("wandb.save('*.pt', policy='now')", files=("w.pt",)),
    Snippet("wandb.save('nothing.*')", ("'nothing.*' is not saved",)),
    Snippet("run.log_artifact('w.pt', name='model', type='model')", files=("model/w.pt",)),
    Snippet("wandb.log_artifact('w.pt', aliases=['best'])",
            ("log_artifact: radt does not record aliases",), files=("w.pt",)),
    Snippet("run.log_model('w.pt', name='best')", files=("best/w.pt",)),
    Snippet("a = wandb.Artifact('m', type='model'); a.add_file('w.pt'); run.log_artifact(a)",
            files=("m/w.pt",)),
    Snippet("a = wandb.Artifact('m', 'model'); a.add_file('w.pt', name='sub/w.pt')\n"
            "wandb.log_artifact(a)",
            files=("m/sub/w.pt",)),
    Snippet("a = wandb.Artifact('m', 'model'); a.add_dir('folder'); run.log_artifact(a)",
            files=("m/folder/x.txt",)),
    Snippet("a = wandb.Artifact('d', 'data', metadata={'a': 1}); a.add_reference('s3://b')",
            ("Artifact: radt does not record metadata", "the reference 's3://b' is not")),
    Snippet("open(run.dir + '/own.txt', 'w').close()", files=("own.txt",)),
    Snippet("run.log_code('.')", (f"log_code: radt has nothing like it. {PAGE}",)),
    Snippet("run.link_artifact(None, 'registry')", ("link_artifact: ",)),
    Snippet("run.use_artifact('data:latest')", raises=f"radt has no use_artifact. {PAGE}"),
    Snippet("wandb.use_model('m')", raises="UsageError: radt has no use_model"),
    Snippet("wandb.restore('w.pt')", raises="UsageError: radt has no restore"),
    Snippet("run.restore('w.pt')", raises="UsageError: radt has no restore"),
)

ATTRIBUTES = (
    Snippet("assert run.project == wandb.run.project == 'vision'"),
    Snippet("assert run.group == 'sizes' and wandb.run.group == 'sizes'"),
    Snippet("assert run.url.startswith('file:///') and run.get_url() == run.url"),
    Snippet("assert run.id and run.path == f'vision/{run.id}'"),
    Snippet("run.tags = ['x']; run.tags += ('y',); assert run.tags == ('x', 'y')",
            tags={"tags": "x, y"}),
    Snippet("wandb.run.tags = wandb.run.tags + ('z',)", tags={"tags": "z"}),
    Snippet("assert run.notes is None; run.notes = 'n'; assert wandb.run.notes == 'n'",
            tags={"notes": "n"}),
    Snippet("assert run.resumed is False and not wandb.run.resumed and run.starting_step == 0"),
    Snippet("assert run.offline and not run.disabled and run.sweep_id is None and not run.entity"),
    Snippet("assert run.job_type is None"),
    Snippet("run.name = 'mine'; assert run.name == 'row a'", ("cannot rename the run",)),
    Snippet("run.settings", raises=f"neither radt.Run nor mlflow has 'settings'. {PAGE}"),
    Snippet("run.project_url", raises=PAGE),
    Snippet("assert not hasattr(run, 'anything') and getattr(run, 'viewer', 7) == 7"),
    Snippet("run.project = 'other'", raises="AttributeError"),
    Snippet("run.alert('low', text='at 0.1', level=wandb.AlertLevel.WARN)",
            ("alert: row a: WARN: low: at 0.1",), tags={"alert.low": "WARN: at 0.1"}),
    Snippet("import datetime\n"
            "for n in 1, 2: wandb.alert('low', f'{n}', wait_duration=datetime.timedelta(hours=5))",
            ("low: 1",), tags={"alert.low": "INFO: 2"}),
    Snippet("run.watch(object(), log='all'); run.unwatch()", ("watch: radt records no gradients",)),
    Snippet("run.mark_preempting(); wandb.mark_preempting()", ("mark_preempting: ",)),
    Snippet("run.display(); wandb.require('core'); wandb.setup(); wandb.teardown()"),
    Snippet("assert wandb.login(key='x') and wandb.run"),
    Snippet("run.join(); assert not wandb.run"),
    Snippet("run.finish(); run.finish()"),
    Snippet("wandb.finish(exit_code=0, quiet=True)"),
    Snippet("wandb.Api()", raises=f"UsageError: radt has no Api. {PAGE}"),
    Snippet("wandb.sweep({'method': 'grid'})", raises="UsageError: radt has no sweep"),
    Snippet("wandb.agent('id', function=print)", raises="UsageError: radt has no agent"),
    Snippet("wandb.keras.WandbCallback()", raises=f"has no attribute 'keras'. {PAGE}"),
    Snippet("assert not hasattr(wandb, 'beta')"),
)

CONFIG = (
    Snippet("wandb.config.lr = 0.1; assert run.config['lr'] == 0.1", params={"lr": "0.1"}),
    Snippet("run.config.update({'a': {'b': 1}})", params={"a.b": "1"}),
    Snippet("run.config.update({'a': 1}, allow_val_change=True)", params={"a": "1"}),
    Snippet("run.config.setdefaults({'a': 1}); assert run.config.get('z', 2) == 2",
            params={"a": "1"}),
    Snippet("assert dict(run.config) == run.config.as_dict() == {}"),
    Snippet("wandb.init(config={'a': 1}, tags=['t'], notes='n', job_type='train')\n"
            "assert run.job_type == 'train'",
            params={"a": "1"}, tags={"tags": "t", "notes": "n", "job_type": "train"}),
    Snippet("wandb.init(config='plain.yaml'); assert wandb.config.lr == 0.1",
            params={"lr": "0.1", "opt.name": "sgd"}),
    Snippet("wandb.init(config='wandb.yaml'); assert wandb.config.opt == {'name': 'sgd'}",
            params={"lr": "0.1", "opt.name": "sgd"}),
    Snippet("wandb.init(config='missing.yaml')", raises="UsageError: init: config='missing.yaml'"),
    Snippet("wandb.init(settings=wandb.Settings(start_method='thread'), save_code=True)"),
    Snippet("wandb.init(id=wandb.util.generate_id(), resume='allow')",
            ("init: radt has nothing for id, resume",)),
)

# fmt: on
SNIPPETS = (*VALUES, *MEDIA, *FILES, *ATTRIBUTES, *CONFIG)
