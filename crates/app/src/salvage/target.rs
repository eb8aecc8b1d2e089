//! Destination of what is saved: a folder, or a dataset of a pool that is imported.

use super::cannot_use;
use crate::api::fs::Get;
use crate::api::name::{check_dataset, pool_of};
use crate::api::{ApiError, ErrorKind, Items, Result};
use crate::client::Client;
use std::fs;
use std::path::{Path, PathBuf};

/// See the module's text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A folder, which is made where it is missing.
    Folder(PathBuf),
    /// A dataset that is made, or the pool that it is made in under the name of the pool that is repaired.
    Dataset(String),
}

/// A dataset that is to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its full name.
    pub name: String,
    /// The one that it is made in, and the bytes that are available there.
    pub parent: (String, u64),
}

impl Target {
    /// Target that a person names: a path that begins with `/` or `.` is a folder, and so is a folder that is there;
    /// all else is of a pool that is imported.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str, client: &dyn Fn() -> Result<Client>) -> Result<Self> {
        let path = Path::new(text);
        let found = path.metadata();
        if found.as_ref().is_ok_and(|found| !found.is_dir()) {
            let message = format!("'{text}' is a file, not a folder");
            return Err(
                ApiError::usage(message).hint("--to names a folder, or a dataset of an imported pool")
            );
        }
        if text.starts_with(['/', '.']) {
            return Ok(Self::Folder(path.to_owned()));
        }
        if text.is_empty() {
            return Err(ApiError::usage("--to names a folder, or a dataset of an imported pool"));
        }
        // Nothing is started to ask it.
        let imported = client()?.status()?.map_or_else(Vec::new, |status| status.pools);
        let is_imported = imported.iter().any(|pool| pool == pool_of(text));
        match (found.is_ok(), is_imported) {
            (true, false) => Ok(Self::Folder(path.to_owned())),
            (true, true) => Err(ApiError::usage(format!("'{text}' is a folder here, and of a pool too"))
                .hint(format!("--to ./{text} is the folder"))),
            (false, true) => check_dataset(text).map(|()| Self::Dataset(text.to_owned())),
            (false, false) => {
                let message = format!(
                    "no pool '{}' is imported, and there is no folder '{text}'",
                    text.split('/').next().unwrap_or_default()
                );
                Err(ApiError::new(ErrorKind::NotFound, message)
                    .hint(format!("--to ./{text} makes a folder; larder pool import imports a pool")))
            }
        }
    }
}

/// Makes the folder that is copied into, which may be there if it is empty.
///
/// # Errors
/// When it cannot be, or has something in it.
pub fn make_folder(folder: &Path) -> Result<()> {
    check_folder(folder)?;
    fs::create_dir_all(folder).map_err(|error| cannot_use(folder, &error))
}

/// Refuses a folder that has something in it.
///
/// # Errors
/// As said, and when it cannot be read.
pub fn check_folder(folder: &Path) -> Result<()> {
    let failed = |error| cannot_use(folder, &error);
    let mut entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    if entries.next().is_some() {
        let message =
            format!("'{}' is not empty: what is saved would mix with what is there", folder.display());
        return Err(ApiError::new(ErrorKind::Exists, message).hint("name a folder that does not exist yet"));
    }
    Ok(())
}

impl Place {
    /// The dataset that a pool goes to, which has the name `pool`, where `named` is a dataset to be made, or a pool.
    ///
    /// # Errors
    /// When it is there already, or its parent is not.
    pub fn find(named: &str, pool: &str, client: &Client) -> Result<Self> {
        let is_pool = !named.contains('/');
        let name = if is_pool { format!("{named}/{pool}") } else { named.to_owned() };
        check_dataset(&name)?;
        let parent = name.rsplit_once('/').map_or("", |(parent, _)| parent).to_owned();
        let found = ask(client, &parent, "available").map_err(|error| match error.kind {
            ErrorKind::NotFound => ApiError::new(ErrorKind::NotFound, format!("there is no '{parent}'"))
                .hint(format!("larder fs create -p {parent}")),
            _ => error,
        })?;
        let values = found.items.iter().flat_map(|item| &item.properties);
        let available = values.filter_map(|one| one.value.parse().ok()).next().unwrap_or(u64::MAX);
        match ask(client, &name, "name") {
            Err(error) if error.kind == ErrorKind::NotFound => Ok(Self { name, parent: (parent, available) }),
            Err(error) => Err(error),
            Ok(_) => {
                let message = format!("'{name}' is there already: what is saved would mix with it");
                Err(ApiError::new(ErrorKind::Exists, message)
                    .hint(format!("name a dataset that does not exist yet: --to {parent}/NAME")))
            }
        }
    }

    /// Whether the dataset is there by now.
    pub fn is_there(&self, client: &Client) -> bool {
        ask(client, &self.name, "name").is_ok()
    }
}

fn ask(client: &Client, name: &str, property: &str) -> Result<Items> {
    client.call(Get {
        names: vec![name.to_owned()],
        depth: Some(0),
        properties: vec![property.to_owned()],
        ..Get::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_dir::RunDir;

    #[test]
    fn folders_are_told_from_pools_by_their_look_or_because_they_are_there() {
        let dir = tempfile::tempdir().unwrap();
        let client = || Ok(Client::new(RunDir::at(&dir.path().join("run"))));
        let parse = |text: &str| Target::parse(text, &client);
        for folder in ["/nothing/here", "./new", "..", "src"] {
            assert_eq!(parse(folder).unwrap(), Target::Folder(folder.into()), "{folder}");
        }
        let told = |text: &str| parse(text).unwrap_err().message;
        assert_eq!(told("Cargo.toml"), "'Cargo.toml' is a file, not a folder");
        assert_eq!(told("tank"), "no pool 'tank' is imported, and there is no folder 'tank'");
        assert_eq!(told("tank/old"), "no pool 'tank' is imported, and there is no folder 'tank/old'");
    }
}
