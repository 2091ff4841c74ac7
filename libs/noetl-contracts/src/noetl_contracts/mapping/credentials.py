"""Credentials as messages; their data travel as bytes that nothing on the way looks into."""

from __future__ import annotations

from noetl.credential.v1 import credential_pb2 as pb
from noetl_core.credentials import decode_data
from noetl_core.ports.credentials import (
    Credential,
    CredentialInfo,
    CredentialPage,
    RotatedPage,
    StoredCredential,
    UnreadableCredential,
)

from noetl_contracts.mapping.times import moment, timestamp


def info_message(info: CredentialInfo) -> pb.Credential:
    """What everybody may know, as a message."""
    return pb.Credential(
        credential_id=info.credential_id,
        name=info.name,
        type=info.type,
        description=info.description,
        tags=info.tags,
        key_id=info.key_id,
        created_at=timestamp(info.created_at),
        created_by=info.created_by,
        updated_at=timestamp(info.updated_at),
        updated_by=info.updated_by,
    )


def info(message: pb.Credential) -> CredentialInfo:
    """What everybody may know."""
    return CredentialInfo(
        credential_id=message.credential_id,
        name=message.name,
        type=message.type,
        description=message.description,
        tags=tuple(message.tags),
        key_id=message.key_id,
        created_at=moment(message.created_at),
        created_by=message.created_by,
        updated_at=moment(message.updated_at),
        updated_by=message.updated_by,
    )


def credential(message: pb.Credential, data_json: bytes) -> Credential:
    """A credential with its secrets."""
    return Credential(
        name=message.name,
        type=message.type,
        description=message.description,
        tags=tuple(message.tags),
        data=decode_data(data_json),
    )


def stored(message: pb.PutResponse) -> StoredCredential:
    """The outcome of storing one."""
    return StoredCredential(info=info(message.credential), created=message.created)


def page(message: pb.ListResponse) -> CredentialPage:
    """A page of a listing."""
    return CredentialPage(
        credentials=tuple(info(one) for one in message.credentials), next_page_token=message.next_page_token
    )


def rotated_message(rotated: RotatedPage) -> pb.RotateResponse:
    """A page of a rotation as a message."""
    return pb.RotateResponse(
        key_id=rotated.key_id,
        rotated=rotated.rotated,
        unreadable=[
            pb.Unreadable(
                tenant_id=one.tenant_id, organization_id=one.organization_id, name=one.name, key_id=one.key_id
            )
            for one in rotated.unreadable
        ],
        next_page_token=rotated.next_page_token,
    )


def rotated(message: pb.RotateResponse) -> RotatedPage:
    """A page of a rotation."""
    return RotatedPage(
        key_id=message.key_id,
        rotated=message.rotated,
        unreadable=tuple(
            UnreadableCredential(
                tenant_id=one.tenant_id, organization_id=one.organization_id, name=one.name, key_id=one.key_id
            )
            for one in message.unreadable
        ),
        next_page_token=message.next_page_token,
    )
