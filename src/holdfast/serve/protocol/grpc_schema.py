"""The messages of gRPC, made here, in a pool of our own. The only module that imports protobuf.

Two libraries that both register the package `inference` in protobuf's common pool cannot live in one process, and the
clients of other servers do so. Ours are in nobody's way: what travels is the same.

A field is `name:type=number`; `*` says that there may be several, `map<T>` is a map from strings to T, and `?` marks
those of which only one is there at a time. Types that are not listed in `_SCALARS` are messages or enums.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

__all__ = ["HEALTH", "INFERENCE", "DecodeError", "message_class", "message_classes"]

INFERENCE = "inference"
HEALTH = "grpc.health.v1"

_ENUMS: dict[str, dict[str, tuple[str, ...]]] = {
    INFERENCE: {
        "DataType": (
            "TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8",
            "TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16",
        ),
    },
    HEALTH: {"ServingStatus": ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")},
}  # fmt: skip

_SCHEMA: dict[str, dict[str, str]] = {
    INFERENCE: {
        "ServerLiveRequest": "",
        "ServerLiveResponse": "live:bool=1",
        "ServerReadyRequest": "",
        "ServerReadyResponse": "ready:bool=1",
        "ModelReadyRequest": "name:string=1 version:string=2",
        "ModelReadyResponse": "ready:bool=1",
        "ServerMetadataRequest": "",
        "ServerMetadataResponse": "name:string=1 version:string=2 extensions:string*=3",
        "ModelMetadataRequest": "name:string=1 version:string=2",
        "ModelMetadataResponse": "name:string=1 versions:string*=2 platform:string=3"
        " inputs:ModelMetadataResponse.TensorMetadata*=4 outputs:ModelMetadataResponse.TensorMetadata*=5"
        " properties:map<string>=6",
        "ModelMetadataResponse.TensorMetadata": "name:string=1 datatype:string=2 shape:int64*=3",
        "InferParameter": "bool_param:bool?=1 int64_param:int64?=2 string_param:string?=3 double_param:double?=4"
        " uint64_param:uint64?=5",
        "InferTensorContents": "bool_contents:bool*=1 int_contents:int32*=2 int64_contents:int64*=3"
        " uint_contents:uint32*=4 uint64_contents:uint64*=5 fp32_contents:float*=6 fp64_contents:double*=7"
        " bytes_contents:bytes*=8",
        "ModelInferRequest": "model_name:string=1 model_version:string=2 id:string=3 parameters:map<InferParameter>=4"
        " inputs:ModelInferRequest.InferInputTensor*=5 outputs:ModelInferRequest.InferRequestedOutputTensor*=6"
        " raw_input_contents:bytes*=7",
        "ModelInferRequest.InferInputTensor": "name:string=1 datatype:string=2 shape:int64*=3"
        " parameters:map<InferParameter>=4 contents:InferTensorContents=5",
        "ModelInferRequest.InferRequestedOutputTensor": "name:string=1 parameters:map<InferParameter>=2",
        "ModelInferResponse": "model_name:string=1 model_version:string=2 id:string=3 parameters:map<InferParameter>=4"
        " outputs:ModelInferResponse.InferOutputTensor*=5 raw_output_contents:bytes*=6",
        "ModelInferResponse.InferOutputTensor": "name:string=1 datatype:string=2 shape:int64*=3"
        " parameters:map<InferParameter>=4 contents:InferTensorContents=5",
        "ModelConfigRequest": "name:string=1 version:string=2",
        "ModelConfigResponse": "config:ModelConfig=1",
        "ModelConfig": "name:string=1 platform:string=2 max_batch_size:int32=4 input:ModelInput*=5"
        " output:ModelOutput*=6 backend:string=17",
        "ModelInput": "name:string=1 data_type:DataType=2 dims:int64*=4",
        "ModelOutput": "name:string=1 data_type:DataType=2 dims:int64*=3",
        "ModelStatisticsRequest": "name:string=1 version:string=2",
        "ModelStatisticsResponse": "model_stats:ModelStatistics*=1",
        "ModelStatistics": "name:string=1 version:string=2 last_inference:uint64=3 inference_count:uint64=4"
        " execution_count:uint64=5 inference_stats:InferStatistics=6 batch_stats:InferBatchStatistics*=7",
        "InferStatistics": "success:StatisticDuration=1 fail:StatisticDuration=2 queue:StatisticDuration=3"
        " compute_input:StatisticDuration=4 compute_infer:StatisticDuration=5 compute_output:StatisticDuration=6"
        " cache_hit:StatisticDuration=7 cache_miss:StatisticDuration=8",
        "InferBatchStatistics": "batch_size:uint64=1 compute_input:StatisticDuration=2"
        " compute_infer:StatisticDuration=3 compute_output:StatisticDuration=4",
        "StatisticDuration": "count:uint64=1 ns:uint64=2",
        "ModelRepositoryParameter": "bool_param:bool?=1 int64_param:int64?=2 string_param:string?=3"
        " bytes_param:bytes?=4",
        "RepositoryIndexRequest": "repository_name:string=1 ready:bool=2",
        "RepositoryIndexResponse": "models:RepositoryIndexResponse.ModelIndex*=1",
        "RepositoryIndexResponse.ModelIndex": "name:string=1 version:string=2 state:string=3 reason:string=4",
        "RepositoryModelLoadRequest": "repository_name:string=1 model_name:string=2"
        " parameters:map<ModelRepositoryParameter>=3",
        "RepositoryModelLoadResponse": "",
        "RepositoryModelUnloadRequest": "repository_name:string=1 model_name:string=2"
        " parameters:map<ModelRepositoryParameter>=3",
        "RepositoryModelUnloadResponse": "",
    },
    HEALTH: {
        "HealthCheckRequest": "service:string=1",
        "HealthCheckResponse": "status:ServingStatus=1",
    },
}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "bool": _Field.TYPE_BOOL, "int32": _Field.TYPE_INT32, "int64": _Field.TYPE_INT64, "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64, "float": _Field.TYPE_FLOAT, "double": _Field.TYPE_DOUBLE,
    "string": _Field.TYPE_STRING, "bytes": _Field.TYPE_BYTES,
}  # fmt: skip


def _add_field(message: Any, package: str, path: str, written: str) -> None:
    name, _, rest = written.partition(":")
    kind, _, number = rest.rpartition("=")
    field = message.field.add(name=name, number=int(number), json_name=name, label=_Field.LABEL_OPTIONAL)
    if kind.startswith("map<"):
        entry_name = "".join(part.title() for part in name.split("_")) + "Entry"
        entry = message.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        _add_field(entry, package, f"{path}.{entry_name}", "key:string=1")
        _add_field(entry, package, f"{path}.{entry_name}", f"value:{kind[4:-1]}=2")
        kind = f"{path}.{entry_name}*"
    if kind.endswith("*"):
        kind, field.label = kind[:-1], _Field.LABEL_REPEATED
    if kind.endswith("?"):
        kind, field.oneof_index = kind[:-1], 0
        if not message.oneof_decl:
            message.oneof_decl.add(name="parameter_choice")
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = _Field.TYPE_ENUM if kind in _ENUMS[package] else _Field.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"


def _file(package: str) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=f"holdfast/{package}.proto", package=package, syntax="proto3")
    for name, values in _ENUMS[package].items():
        enum = file.enum_type.add(name=name)
        for number, value in enumerate(values):
            enum.value.add(name=value, number=number)
    made: dict[str, Any] = {}
    for path, fields in _SCHEMA[package].items():
        outer, _, name = path.rpartition(".")
        made[path] = made[outer].nested_type.add(name=name) if outer else file.message_type.add(name=name)
        for written in fields.split():
            _add_field(made[path], package, path, written)
    return file


_pool = descriptor_pool.DescriptorPool()
for _package in _SCHEMA:
    _pool.Add(_file(_package))


def message_class(name: str, package: str = INFERENCE) -> Any:
    """The class of a message, such as `ModelInferRequest` or `ModelInferRequest.InferInputTensor`."""
    return message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{package}.{name}"))


def message_classes() -> list[tuple[str, str]]:
    """All messages: package and name."""
    return [(package, name) for package, messages in _SCHEMA.items() for name in messages]
