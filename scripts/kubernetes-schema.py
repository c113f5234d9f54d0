#!/usr/bin/env python3
"""Makes tests/fixtures/kubernetes/job.json: the part of the JSON Schema of a Kubernetes Job that our manifest uses.

    pip install kubernetes-validate pyyaml
    scripts/kubernetes-schema.py examples/kubernetes/agents.yaml > tests/fixtures/kubernetes/job.json

The whole schema comes with the package `kubernetes-validate` (from the OpenAPI description of Kubernetes 1.37, strict). What is kept: types,
required keys and values to choose from of all that the manifest has; other keys are left out, and so are not allowed.
"""

import json
import sys
from pathlib import Path

import kubernetes_validate
import yaml

VERSION = "v1.37.0-local-strict"
FOLDER = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema" / VERSION
DEFINITIONS = json.loads((FOLDER / "_definitions.json").read_text())["$defs"]


def resolve(schema):
    while "$ref" in schema:
        schema = DEFINITIONS[schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def part(schema, value):
    """What of a schema says something about a value."""
    schema = resolve(schema)
    kept = {key: schema[key] for key in ("type", "enum", "oneOf", "required") if key in schema}
    if isinstance(value, dict):
        known = schema.get("properties", {})
        kept["properties"] = {key: part(known[key], inner) for key, inner in value.items() if key in known}
        if "additionalProperties" in schema:
            free = schema["additionalProperties"]
            kept["additionalProperties"] = part(free, None) if isinstance(free, dict) else free
    if isinstance(value, list):
        items = [part(schema["items"], inner) for inner in value]
        kept["items"] = merge(items)
    return kept


def merge(schemas):
    """One schema for the items of a list, which may have different keys."""
    whole = {}
    for schema in schemas:
        for key, value in schema.items():
            if isinstance(value, dict) and isinstance(whole.get(key), dict):
                whole[key] = merge([whole[key], value])
            else:
                whole[key] = value
    return whole


manifest = yaml.safe_load(Path(sys.argv[1]).read_text())
job = json.loads((FOLDER / "job-batch-v1.json").read_text())
print(json.dumps(part(job, manifest), indent=1, sort_keys=True))
