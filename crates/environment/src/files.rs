//! Files in an environment.

use bytes::Bytes;
use outpost_wire::exec::attributes::{
    Attributes, AttributesParams, CreateLink, CreateLinkParams, GetAttributes, ListAttributes, NamedAttributes, SetMode, SetModeParams,
};
use outpost_wire::exec::files::{
    Canonicalize, CanonicalizeParams, Copy, CopyParams, CreateDirectory, CreateDirectoryParams, DirectoryEntry, FileMetadata, GetMetadata,
    GetMetadataParams, ReadDirectory, ReadDirectoryParams, ReadFile, ReadFileParams, Remove, RemoveParams, Rename, RenameParams, WriteFile,
    WriteFileParams,
};
use outpost_wire::{Escaped, PathUri};

use crate::environment::{Environment, EnvironmentError};

/// File calls. Reading is repeated after a lost connection; so is writing a whole file, which comes to the same when done
/// twice. Everything else is left unknown.
pub struct Files<'a>(&'a Environment);

impl<'a> Files<'a> {
    pub(crate) fn new(environment: &'a Environment) -> Self {
        Self(environment)
    }

    pub async fn read(&self, path: PathUri) -> Result<Bytes, EnvironmentError> {
        let params = ReadFileParams { path, follow_symlinks: None, sandbox: None };
        Ok(self.0.call_again::<ReadFile>(&params).await?.data_base64.0)
    }

    pub async fn write(&self, path: PathUri, data: Bytes) -> Result<(), EnvironmentError> {
        let params = WriteFileParams { path, data_base64: data.into(), follow_symlinks: None, sync: None, mode: None, sandbox: None };
        self.0.call_again::<WriteFile>(&params).await?;
        Ok(())
    }

    pub async fn metadata(&self, path: PathUri) -> Result<FileMetadata, EnvironmentError> {
        self.0.call_again::<GetMetadata>(&GetMetadataParams { path, follow_symlinks: None, sandbox: None }).await
    }

    pub async fn canonicalize(&self, path: PathUri) -> Result<PathUri, EnvironmentError> {
        Ok(self.0.call_again::<Canonicalize>(&CanonicalizeParams { path, sandbox: None }).await?.path)
    }

    pub async fn list(&self, path: PathUri) -> Result<Vec<DirectoryEntry>, EnvironmentError> {
        Ok(self.0.call_again::<ReadDirectory>(&ReadDirectoryParams { path, sandbox: None }).await?.entries)
    }

    /// Creates a directory and its parents.
    pub async fn create_directory(&self, path: PathUri) -> Result<(), EnvironmentError> {
        let params = CreateDirectoryParams { path, recursive: Some(true), follow_symlinks: None, sandbox: None };
        self.0.call_again::<CreateDirectory>(&params).await?;
        Ok(())
    }

    /// Removes a file or a tree; fine if there is none.
    pub async fn remove(&self, path: PathUri) -> Result<(), EnvironmentError> {
        let params = RemoveParams { path, recursive: Some(true), force: Some(true), follow_symlinks: None, sandbox: None };
        self.0.call_again::<Remove>(&params).await?;
        Ok(())
    }

    pub async fn copy(&self, source_path: PathUri, destination_path: PathUri) -> Result<(), EnvironmentError> {
        let params = CopyParams { source_path, destination_path, recursive: true, sandbox: None };
        self.0.call_once::<Copy>(&params).await?;
        Ok(())
    }

    pub async fn rename(&self, source_path: PathUri, destination_path: PathUri) -> Result<(), EnvironmentError> {
        self.0.call_once::<Rename>(&RenameParams { source_path, destination_path, sandbox: None }).await?;
        Ok(())
    }

    /// Of the thing itself, be it a link. This and all below need the capability `fileAttributes`.
    pub async fn attributes(&self, path: PathUri) -> Result<Attributes, EnvironmentError> {
        self.0.call_again::<GetAttributes>(&AttributesParams { path, sandbox: None }).await
    }

    pub async fn list_attributes(&self, path: PathUri) -> Result<Vec<NamedAttributes>, EnvironmentError> {
        Ok(self.0.call_again::<ListAttributes>(&AttributesParams { path, sandbox: None }).await?.entries)
    }

    pub async fn set_mode(&self, path: PathUri, mode: u32) -> Result<(), EnvironmentError> {
        self.0.call_again::<SetMode>(&SetModeParams { path, mode, sandbox: None }).await?;
        Ok(())
    }

    pub async fn create_link(&self, path: PathUri, target: Escaped) -> Result<(), EnvironmentError> {
        self.0.call_once::<CreateLink>(&CreateLinkParams { path, target, sandbox: None }).await?;
        Ok(())
    }
}
