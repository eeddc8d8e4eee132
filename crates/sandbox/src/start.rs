//! Starting sandboxes: looks at the machine once, then makes one sandbox per episode.

use std::fs::File;
use std::io;

use rustix::fs::fstat;
use tempfile::TempDir;
use tokio::sync::OnceCell;

use super::config::{Containment, Priority, SandboxConfig, SandboxKind, WORKSPACE};
use super::docker::{Container, Docker};
use super::error::SandboxError;
use super::layout::{self, Machine};
use super::namespaces::{Launcher, Namespaces};
use super::protocol::Spec;
use super::python;
use super::sandbox::{Command, Sandbox};
use super::workspace::Workspace;

/// Who owns files of a container when we are root.
const NOBODY: (u32, u32) = (65534, 65534);

/// Starts sandboxes of one configuration.
#[derive(Debug)]
pub struct Sandboxes {
    config: SandboxConfig,
    machine: OnceCell<Machine>,
    launcher: Launcher,
}

impl Sandboxes {
    /// Nothing is looked up or started before the first sandbox is.
    pub fn new(config: SandboxConfig) -> Self {
        let launcher = Launcher::new(config.init.clone());
        Self { config, machine: OnceCell::new(), launcher }
    }

    /// The configuration.
    pub fn config(&self) -> &SandboxConfig {
        &self.config
    }

    /// Starts a sandbox for an episode, or says exactly what the machine lacks.
    pub async fn start(&self) -> Result<Sandbox, SandboxError> {
        self.start_for(Priority::Episode).await
    }

    /// Starts a sandbox for an episode or for those who judge it.
    pub async fn start_for(&self, priority: Priority) -> Result<Sandbox, SandboxError> {
        match self.config.kind {
            SandboxKind::Namespaces => self.start_namespaces(priority).await,
            SandboxKind::Docker => self.start_docker(priority).await,
            SandboxKind::None => self.start_unprotected().await,
        }
    }

    async fn machine(&self) -> Result<&Machine, SandboxError> {
        let look = async || {
            let own = self.config.init.clone().into_iter().chain(std::env::current_exe().ok());
            Ok(Machine::look(python::find(self.config.python.as_deref()).await?, own.collect()))
        };
        self.machine.get_or_try_init(look).await
    }

    /// Makes a sandbox to see that it can be, and that the wanted interpreter runs inside.
    pub async fn try_out(&self) -> Result<Containment, SandboxError> {
        let sandbox = self.start().await?;
        let output = sandbox.run(Command::argv(["python3", "-I", "-c", python::QUESTION])).await;
        sandbox.stop().await;
        let answer = match output {
            Ok(output) => output.capture.text().to_string(),
            Err(SandboxError::NotStarted { error, .. }) => error.to_string(),
            Err(error) => return Err(error),
        };
        let wanted = self.machine.get().map(|it| &it.python.identity);
        python::check_answer(&answer, wanted)?;
        Ok(sandbox.containment())
    }

    async fn start_namespaces(&self, priority: Priority) -> Result<Sandbox, SandboxError> {
        let machine = self.machine().await?;
        let root = layout::plan(machine, &self.config.limits, self.config.network);
        let spec = Spec { root, priority, ..self.spec(WORKSPACE) };
        let (backend, directory, containment) = Namespaces::start(&self.launcher, &spec).await?;
        let stat = fstat(&directory).map_err(io::Error::from)?;
        let is_ours = stat.st_uid == rustix::process::geteuid().as_raw();
        let owner = (!is_ours).then_some((stat.st_uid, stat.st_gid));
        let workspace = Workspace::new(directory, owner, WORKSPACE);
        let env = environment(&machine.search_path(), "/tmp");
        Ok(Sandbox::new(Box::new(backend), workspace, &machine.shell, env, containment, None))
    }

    async fn start_unprotected(&self) -> Result<Sandbox, SandboxError> {
        let machine = self.machine().await?;
        let directory = directory_of_episode()?;
        let inside = directory.path().display().to_string();
        let path = std::env::var("PATH").unwrap_or_else(|_| machine.search_path());
        let env = environment(&format!("{}:{path}", machine.python_directory()), &inside);
        let spec = Spec { unprotected: true, ..self.spec(&inside) };
        let (backend, opened, containment) = Namespaces::start(&self.launcher, &spec).await?;
        let workspace = Workspace::new(opened, None, inside);
        Ok(Sandbox::new(Box::new(backend), workspace, &machine.shell, env, containment, Some(directory)))
    }

    /// What every supervisor is told.
    fn spec(&self, workspace: &str) -> Spec {
        Spec {
            root: Vec::new(),
            workspace: workspace.to_owned(),
            limits: self.config.limits.clone(),
            priority: Priority::Verifier,
            network: self.config.network,
            unprotected: false,
        }
    }

    async fn start_docker(&self, priority: Priority) -> Result<Sandbox, SandboxError> {
        let directory = directory_of_episode()?;
        let is_root = rustix::process::geteuid().is_root();
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let user = if is_root { NOBODY } else { own };
        std::os::unix::fs::chown(directory.path(), Some(user.0), Some(user.1))?;
        let opened = File::open(directory.path())?;
        let workspace = Workspace::new(opened.into(), is_root.then_some(user), WORKSPACE);
        let name = directory.path().file_name().unwrap_or_default().display().to_string();
        let path = directory.path().display().to_string();
        let container = Container { name, workspace: path, user, priority };
        let backend = Docker::start(&self.config, container).await?;
        let env = environment("", "/tmp");
        Ok(Sandbox::new(Box::new(backend), workspace, "sh", env, Containment::WHOLE, Some(directory)))
    }
}

/// A directory of the machine that only its owner can enter, and that is removed with all in it when dropped.
fn directory_of_episode() -> io::Result<TempDir> {
    tempfile::Builder::new().prefix("backsight-").tempdir()
}

/// The whole environment of a program: nothing of ours is handed on.
fn environment(path: &str, home: &str) -> Vec<(String, String)> {
    let variables = [
        ("PATH", path),
        ("HOME", home),
        ("LANG", "C.UTF-8"),
        ("TERM", "dumb"),
        ("USER", "agent"),
        ("PYTHONDONTWRITEBYTECODE", "1"),
        ("PYTHONUNBUFFERED", "1"),
    ];
    variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
}
